/* What crosses the border between Tailrace and a library of environments and rewards. C11 and
   C++17, on 64-bit little-endian machines. tailrace/env.h and tailrace/reward.h are the C++ over
   it.

   1. A library exports one function, tailrace_library_1(). The number is that of this ABI: another
      meaning of anything here gets another number and another function.
   2. Structs grow at their end only. Each one that may grow begins with its size as its maker knew
      it; a reader takes what is there, and 0 for the rest, and a writer fills what is there
      (TR_HAS). None of them lies by value in another one or in an array.
   3. A function pointer that is null is not offered.
   4. Nothing is freed on the other side. What a call gives back is valid until the next call on the
      same object; what a call is given, until it returns.
   5. Nothing is thrown across. A call says what it came to (tr_status).
   6. An object is used by one thread at a time, not always the same one; different objects by
      several threads at once.
   7. A library leaves the process alone: no signal handlers, no fork, nothing on standard output.
 */
#ifndef TAILRACE_ABI_H
#define TAILRACE_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TR_ABI 1
#define TR_ABI_ENTRY "tailrace_library_1" /* for dlsym */
#define TR_EXPORT __attribute__((visibility("default")))
/* Whether the maker of a struct knew this field. */
#define TR_HAS(object, field) \
  ((object)->size >= offsetof(__typeof__(*(object)), field) + sizeof((object)->field))

/* These three never grow. */
typedef struct tr_text { /* UTF-8, with no 0 behind it */
  const char* data;
  uint64_t bytes;
} tr_text;
typedef struct tr_metric {
  const char* name;
  double value;
} tr_metric;
typedef struct tr_setting_value {
  const char* name;
  tr_text value;
} tr_setting_value;

/* int32_t tr_status: what a call came to. But for TR_OK, `reason` says why. */
enum {
  TR_OK = 0,
  TR_PENDING = 1,     /* not ready: the same call with the same arguments comes again */
  TR_FAILED = 2,      /* the environment or the reward failed: tried again, never a reward */
  TR_TASK_BROKEN = 3, /* nobody can play or score this task: it is not tried again */
  TR_MISUSE = 4,      /* a call out of order: step before reset, or after the end */
  TR_NOT_DECIDED = 5, /* of a score: no verdict. Tried again, never a reward */
};

enum { TR_RUNNING = 0, TR_TERMINATED = 1, TR_TRUNCATED = 2 }; /* tr_step.ending */

enum { TR_INTEGER = 1, TR_NUMBER = 2, TR_BOOL = 3, TR_STRING = 4, TR_CHOICE = 5 }; /* tr_setting */

/* A key of env.settings or reward.settings, checked by the host before create(), and shown to
   people as the host's own keys are. */
typedef struct tr_setting {
  uint32_t size;
  int32_t type;
  const char* name;
  const char* help;
  const char* fallback;       /* null: it must be given */
  double min, max;            /* of TR_INTEGER and TR_NUMBER, both included */
  const char* const* choices; /* of TR_CHOICE; null-terminated */
} tr_setting;

/* What a library may call. Valid for its whole life, from any thread. */
typedef struct tr_host {
  uint32_t size;
  uint32_t abi;
  const char* version; /* of Tailrace */
  void* self;
  void (*log)(void* self, int32_t level /* 0 debug, 1 info, 2 warning, 3 error */, tr_text line);
} tr_host;

/* Which episode to begin. The same task and the same actions give the same episode. */
typedef struct tr_task {
  uint32_t size;
  uint32_t reserved;
  uint64_t seed;
  tr_text row; /* of the dataset, JSON; empty: the environment draws its own task from the seed */
} tr_task;

/* Of one object, because settings may change it. */
typedef struct tr_info {
  uint32_t size;
  int32_t needs_dataset;
  int64_t max_turns;             /* 0: 1 */
  int64_t max_action_tokens;     /* 0: 16. A suggestion; the config may say another */
  const char* const* vocabulary; /* of a word-level tokenizer; null-terminated; null: any will do */
  const char* const* stop_strings; /* what ends an action; null-terminated; null: none */
  const char* reward;              /* who scores its episodes; null: the environment itself */
} tr_info;

/* What reset, step, cut and score give. The host zeroes it and sets `size`. */
typedef struct tr_step {
  uint32_t size;
  int32_t ending;
  tr_text text;             /* what the policy hears */
  tr_text messages;         /* instead of `text`: JSON, a list of {"role", "content", ...} */
  tr_text tools;            /* of reset: JSON, a list of schemas as transformers has them */
  double reward;            /* of this call; the episode's reward is the sum */
  tr_text reason;           /* of TR_TRUNCATED and of a status that is not TR_OK */
  tr_text evidence;         /* at the end, where tr_info.reward names who scores: JSON for it */
  const tr_metric* metrics; /* of the episode so far */
  uint64_t num_metrics;
  /* What names the state that follows, for credit across episodes of one task: equal where they
     stand in the same state, without counters of steps. Empty: what the policy hears. */
  tr_text state;
} tr_step;

typedef struct tr_env tr_env; /* the library's own */
typedef struct tr_env_type {
  uint32_t size;
  uint32_t reserved;
  const char* name;
  const char* help;
  const tr_setting* const* settings; /* null-terminated; null: none */
  /* Not TR_OK: `reason`. One that begins with the name of a setting, and a blank or a colon, is
     shown at its line of the config. */
  int32_t (*create)(const tr_host*, const tr_setting_value*, uint64_t count, tr_env** made,
                    tr_text* reason);
  void (*destroy)(tr_env*);
  int32_t (*info)(tr_env*, tr_info*);
  int32_t (*reset)(tr_env*, const tr_task*, tr_step*);
  int32_t (*step)(tr_env*, tr_text action, tr_step*);
  /* Who plays ends the episode at a limit of turns or tokens: the last answer, TR_TRUNCATED. */
  int32_t (*cut)(tr_env*, tr_step*);
  int32_t (*close)(tr_env*);
  int32_t (*sample_action)(tr_env*, uint64_t random,
                           tr_text*); /* some legal action, also outside of an episode */

  /* Optional. score: behind the end of an episode, what judging it takes; its reward comes on top.
     demonstrate: what an imperfect demonstrator would answer now, in an episode alone. */
  int32_t (*score)(tr_env*, tr_step*);
  int32_t (*demonstrate)(tr_env*, uint64_t random, tr_text*);
  /* Nobody calls these yet. */
  int32_t (*tools)(tr_env*, tr_text*);
  int32_t (*snapshot)(tr_env*, tr_text* state);
  int32_t (*restore)(tr_env*, tr_text state);
  int32_t (*fork)(tr_env*, tr_env** made);
} tr_env_type;

typedef struct tr_score {
  uint32_t size;
  uint32_t reserved;
  double reward;
  tr_text reason; /* of a status that is not TR_OK */
  const tr_metric* metrics;
  uint64_t num_metrics;
} tr_score;

typedef struct tr_reward tr_reward; /* the library's own */
typedef struct tr_reward_type {
  uint32_t size;
  uint32_t reserved;
  const char* name;
  const char* help;
  const tr_setting* const* settings;
  int32_t (*create)(const tr_host*, const tr_setting_value*, uint64_t count, tr_reward** made,
                    tr_text* reason);
  void (*destroy)(tr_reward*);
  /* `evidence`: JSON, what the environment wrote at the end of the episode. */
  int32_t (*score)(tr_reward*, tr_text evidence, int64_t budget_ns, tr_score*);
  /* Optional: whether answers to this row of a dataset can be scored. */
  int32_t (*check_row)(tr_reward*, tr_text row, tr_text* reason);
} tr_reward_type;

typedef struct tr_library {
  uint32_t size;
  uint32_t abi; /* TR_ABI as it was compiled */
  const char* name;
  const char* version;
  const char* built_with;                 /* compiler and headers, for people */
  const tr_env_type* const* environments; /* null-terminated; null: none */
  const tr_reward_type* const* rewards;   /* null-terminated; null: none */
} tr_library;

/* Called once in a process. Null: it cannot work here, and has logged why. */
TR_EXPORT const tr_library* tailrace_library_1(const tr_host* host);

#ifdef __cplusplus
}
#endif
#endif
