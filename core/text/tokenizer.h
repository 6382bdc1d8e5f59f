// Text to token ids and back, from a Hugging Face tokenizer.json, id for id as transformers does
// it.
//
// Understood: models BPE (byte fallback, byte level, ignore_merges) and WordLevel; normalizers NFC,
// Prepend, Replace; pre-tokenizers ByteLevel, Digits, Metaspace, Punctuation, Split, Whitespace,
// WhitespaceSplit; added tokens; post-processors TemplateProcessing, RobertaProcessing,
// BertProcessing, ByteLevel; decoders ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip,
// WordPiece; sequences of these. Other parts are refused by name. Patterns are Oniguruma's
// (oniguruma.h).
//
// Thread: any (immutable).
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/generate.h"

namespace tailrace::text {

struct EncodeOptions {
  // Adds what the post-processor adds (a BOS, for example).
  bool framed = false;
  // Special tokens that stand in the text are found, as transformers does it. Not for text that an
  // environment, a tool or a user has written: it could forge the end of a turn.
  bool find_special = true;
  // Byte offsets of `text`, ascending: no special token may lie over one of them, and none of one
  // character begin at one. So the words of others, inside a text that has special tokens of its
  // own, stay words. The same holds for other added tokens, but for those that are looked for in
  // normalised text. With them the text must be UTF-8.
  std::span<const size_t> literal = {};
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Bytes that are not UTF-8 are read as U+FFFD. Throws UserError for a word that a word-level
  // vocabulary lacks, or has only as a special token that must not be found.
  virtual std::vector<TokenId> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const = 0;
  // Special tokens are left out unless `keep_special`. Bytes that are not UTF-8 become U+FFFD.
  virtual std::string decode(std::span<const TokenId> ids, bool keep_special = false) const = 0;

  // The bytes that the token adds to a text, special ones too. It need not be UTF-8: a token may be
  // a part of a character.
  virtual std::string bytes_of(TokenId id) const = 0;

  virtual int64_t vocab_size() const = 0;                   // largest id + 1
  virtual TokenId id_of(std::string_view token) const = 0;  // exact vocabulary entry; -1: none
  virtual TokenId bos() const = 0;                          // -1: none
  virtual TokenId eos() const = 0;                          // -1: none
  // As they are written. The rest of the vocabulary has no meaning but its text.
  virtual std::vector<std::string> special_tokens() const = 0;
  virtual bool is_special(TokenId id) const = 0;

  // Most bytes of a text that one token can stand for, beside the blanks of num_stripped(). 0:
  // there is no such bound, because the tokenizer leaves characters out, or has one token for all
  // that it does not know.
  virtual int64_t max_token_bytes() const { return 0; }
  // At least the bytes of white space in a text that added tokens take with them (their lstrip and
  // rstrip). Its work is a few passes over the text.
  virtual int64_t num_stripped(std::string_view) const { return 0; }
};

// Bytes that are no ASCII blanks: what is left of a text whatever a template trims. It takes a look
// at each, which is far less work than to encode.
int64_t num_non_blank(std::string_view text);
// Fewest tokens that a text of so many bytes can become, where no added token strips any of them.
// 0: nothing is known.
int64_t least_num_tokens(const Tokenizer& tokenizer, int64_t num_bytes);
// The same of a text that is encoded as it is: its blanks count.
int64_t least_num_tokens(const Tokenizer& tokenizer, std::string_view text);

// Reads DIR/tokenizer.json, and the files beside it for bos, eos and added tokens that
// tokenizer.json lacks (config_tokens.h). Throws UserError naming the file and the part that is
// malformed or not supported, and a token on whose id the files disagree.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory);

// Throws UserError when a model of `vocab_size` embeddings lacks some of its ids; `where` names the
// tokenizer.
void check_vocabulary(const Tokenizer& tokenizer, int64_t vocab_size, std::string_view where);

inline constexpr const char* kTemplateFile = "chat_template.jinja";  // of a model folder

// Copies the files of a model folder that belong to its tokenizer, each atomically. tokenizer.json
// comes last: where it is, the others are. `chat_template`: a file in the place of its own chat
// template; empty: its own. Throws UserError: an unreadable file, a full disk.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to,
                    const std::filesystem::path& chat_template = {});

// The special tokens of write_word_tokenizer(): <pad>, <s>, </s>. The words follow.
inline constexpr TokenId kPadWord = 0, kBosWord = 1, kEosWord = 2, kFirstWord = 3;

// Writes a word-level tokenizer.json and tokenizer_config.json that transformers reads too: the
// words in order get the ids from kFirstWord on. Text is cut into words and newlines; blanks
// separate. This is how a policy made from scratch gets its vocabulary from an environment.
void write_word_tokenizer(const std::filesystem::path& directory,
                          std::span<const std::string> words);

}  // namespace tailrace::text
