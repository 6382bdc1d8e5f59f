#include "trainer/options.h"

#include "core/base/error.h"

namespace tailrace {

void OptimOptions::visit(OptionVisitor& v) {
  v.field("kind", kind,
          {.help = "adamw; or muon, which makes the update of each matrix of a layer orthogonal, "
                   "with a scale near that of AdamW (try lr at one to three times its own), and "
                   "leaves embeddings, head, norms and biases to AdamW"});
  v.field("lr", lr, {.help = "peak learning rate", .min = 0, .max = 1000});
  v.field("betas", betas,
          {.help = "decay of the first and second moment of AdamW", .min = 0, .max = 1});
  v.field("eps", eps, {.help = "added to the root of the second moment", .min = 0, .max = 1});
  v.field("momentum", momentum,
          {.help = "decay of the gradients that Muon adds up",
           .min = 0,
           .max = 0.9999,
           .idle = idle_if(kind != OptimizerKind::kMuon, "{kind} is adamw", {"kind"})});
  v.field("weight_decay", weight_decay,
          {.help = "decoupled weight decay of matrices and embeddings", .min = 0, .max = 1000});
  v.field("decay_norms", decay_norms,
          {.help = "weight decay of norms and biases as well",
           .idle = idle_if(weight_decay == 0, "{weight_decay} is 0", {"weight_decay"})});
  v.field("warmup_updates", warmup_updates,
          {.help = "updates over which the rate rises linearly: lr / warmup_updates is that of the "
                   "first; updates that were not made, or skipped, do not count",
           .min = 0,
           .max = kMaxCount});
  v.field("schedule", schedule,
          {.help = "of the rate after the warm-up: linear and cosine fall with the share of the "
                   "run that is done (of its steps, or of its prompts where epochs end it) and "
                   "reach their end behind the last update; where run.steps changes later, by the "
                   "new length from there on"});
  v.field(
      "min_lr_ratio", min_lr_ratio,
      {.help = "share of lr that linear and cosine fall to behind the last update; with 0 and "
               "linear, the last of N has lr / N",
       .min = 0,
       .max = 1,
       .idle = idle_if(schedule == LrSchedule::kConstant, "{schedule} is constant", {"schedule"})});
  v.field("max_grad_norm", max_grad_norm,
          {.help = "gradients are scaled down to this global norm; 0: off",
           .min = 0,
           .max = kMaxCount});
}

void CriticOptions::visit(OptionVisitor& v) {
  v.field("lr", lr, {.help = "constant learning rate of its AdamW", .min = 0, .max = 1000});
  v.field("value_clip", value_clip,
          {.help = "a value gains nothing from moving further than this in a step; 0: off",
           .min = 0,
           .max = kMaxCount});
  v.field("max_grad_norm", max_grad_norm,
          {.help = "its gradient is scaled down to this norm; 0: off", .min = 0, .max = kMaxCount});
  v.field("warmup_steps", warmup_steps,
          {.help = "first steps that train it alone, while the policy stays as it is",
           .min = 0,
           .max = kMaxCount});
}

void TrainOptions::visit(OptionVisitor& v) {
  v.field("minibatches_per_step", minibatches_per_step,
          {.help = "optimizer updates a pass over the step's batch; groups stay whole",
           .min = 1,
           .max = 1e6});
  v.field("microbatch_tokens", microbatch_tokens,
          {.help = "tokens a forward and backward pass; memory grows with it; the cuts change the "
                   "last digits of sums",
           .min = 1,
           .max = 1 << 24,
           .resume = Resume::kMayChange});
  v.field("recompute", recompute,
          {.help = "keep of a micro-batch the inputs of layers alone, and compute the rest of each "
                   "again in the backward pass: a third more work, far less memory, the same bits",
           .resume = Resume::kMayChange});
  v.field("share_prefixes", share_prefixes,
          {.help = "compute a prompt that samples of a micro-batch share once, and the turns that "
                   "others go on from; log-probabilities have the same bits, sums of gradients "
                   "other last digits; dense models on the CPU",
           .resume = Resume::kMayChange});
  v.field("ppo_epochs", ppo_epochs,
          {.help = "passes over the batch of a step", .min = 1, .max = 1000});
  v.field("gradient_slots", gradient_slots,
          {.help = "fixed parts that gradients are summed in; ranks own whole slots",
           .min = 1,
           .max = 256});
  v.field("ranks", ranks,
          {.help = "trainer processes that share each step (data parallel): a power of two that "
                   "divides gradient_slots; weights come out the same for any number, and each has "
                   "all of them in memory",
           .min = 1,
           .max = 64,
           .resume = Resume::kMayChange});
  v.field(
      "rank_seconds", rank_seconds,
      {.help = "longest wait of a rank, in the middle of a step, for one that stands still; one "
               "whose process dies is noticed within seconds, and ranks that meet wait for all "
               "of them and say so that often",
       .min = 1,
       .max = 86400,
       .resume = Resume::kMayChange});
  v.field("balance_coef", balance_coef,
          {.help = "of the loss that balances experts, of each sequence and layer by itself "
                   "(experts x sum of share of choices x mean probability); -1: the "
                   "router_aux_loss_coef of the model's files; 0: none",
           .min = -1,
           .max = 1000});
  v.field("balance_bias_rate", balance_bias_rate,
          {.help = "balance without a loss: after each update a bias that the choice of experts "
                   "adds to their probabilities moves by this, up where an expert had fewer tokens "
                   "than the mean and down where more; transformers leaves it out when it loads "
                   "a checkpoint; 0: none",
           .min = 0,
           .max = 1});
  v.field("threads", threads,
          {.help = "threads of the trainer; 0: its share of the machine's cores",
           .min = 0,
           .max = kMaxThreads,
           .resume = Resume::kMayChange});
  v.field("trace_steps", trace_steps,
          {.help = "the last steps whose tokens are kept for 'tailrace status --sample', with what "
                   "the loss saw "
                   "of each (some 60 bytes a token, at most 64 MiB a step); 0: none",
           .min = 0,
           .max = kMaxCount,
           .resume = Resume::kMayChange});
}

void RowOptions::visit_rows(OptionVisitor& v, std::string_view data_help, const Idle& no_rows) {
  v.field("data", data, {.help = data_help, .path = true, .default_is_older = true});
  v.field("columns", columns,
          {.help = "columns of its rows, and of those of eval_data, that have other names here, as "
                   "OURS: THEIRS",
           .idle = no_rows});
  v.field("too_long", too_long,
          {.help = "a row longer than rollout.max_context_tokens: it is an error, is dropped, or "
                   "loses its end",
           .idle = no_rows});
}

void RowOptions::visit_passes(OptionVisitor& v) {
  v.field("eval_data", eval_data,
          {.help = "JSONL file of held-out rows, as data; empty: none", .path = true});
  v.field("eval_updates", eval_updates,
          {.help = "their loss is measured every so many updates (500 times at most), before the "
                   "first and after the last; 0: only then",
           .min = 0,
           .max = kMaxCount,
           .resume = Resume::kMayChange,
           .idle = idle_if(eval_data.empty(), "{eval_data} is empty", {"eval_data"})});
  v.field("checkpoint_updates", checkpoint_updates,
          {.help = "updates from one checkpoint to the next, from which a run that was killed goes "
                   "on; 0: only at the end",
           .min = 0,
           .max = kMaxCount,
           .resume = Resume::kMayChange});
  v.field("epochs", epochs, {.help = "passes over the file", .min = 1, .max = kMaxCount});
  v.field("updates", updates,
          {.help = "it ends after so many updates, where its epochs do not end before; 0: with its "
                   "epochs",
           .min = 0,
           .max = kMaxCount,
           .default_is_older = true});
}

void SftOptions::visit(OptionVisitor& v) {
  visit_rows(v,
             "JSONL file of rows to learn from, plain, gzip or zstd: messages, prompt and "
             "completion, or token ids (docs/data.md); empty: none",
             idle_if(data.empty() && eval_data.empty(), "demonstrations are written by the run",
                     {"data", "eval_data"}));
  v.field("demonstrations", demonstrations,
          {.help = "episodes of the environment's own demonstrator to learn from; 0: none",
           .min = 0,
           .max = 1e6});
  visit_passes(v);
  v.field("batch_tokens", batch_tokens,
          {.help = "tokens an update, whole rows", .min = 1, .max = 1 << 24});
  v.section("optim", optim,
            "its optimizer; a policy of model.create learns with lr 1e-3 when none is given");
}

void PreferenceOptions::visit(OptionVisitor& v) {
  visit_rows(v,
             "JSONL file of preferences, plain, gzip or zstd: prompt, chosen and rejected; for the "
             "loss kto prompt, completion and label (docs/data.md); empty: none",
             {});
  visit_passes(v);
  v.field("batch_rows", batch_rows,
          {.help = "rows an update; of kto two at least", .min = 1, .max = 1e6});
  loss.visit(v);
  v.section("optim", optim, "its optimizer");
}

void RewardModelOptions::visit(OptionVisitor& v) {
  visit_rows(v,
             "JSONL file of preferences, as preference.data: a reward model learns to score the "
             "chosen completion above the rejected one, by the row's margin where it has one; "
             "empty: none",
             {});
  visit_passes(v);
  v.field("batch_rows", batch_rows, {.help = "pairs an update", .min = 1, .max = 1e6});
  v.field("centering", centering,
          {.help = "of (chosen + rejected)^2, which holds scores around 0 (2312.09244); 0: none",
           .min = 0,
           .max = 1000});
  v.section("optim", optim, "its optimizer");
}

void DistillStageOptions::visit(OptionVisitor& v) {
  visit_rows(v,
             "JSONL file of rows to learn from, as sft.data; at each token that counts there the "
             "policy learns from what a teacher says; empty: none",
             {});
  visit_passes(v);
  v.field("policy", policy,
          {.help = "the teacher, one of `policies`: it scores all rows once, before the first "
                   "update",
           .default_is_older = true});
  v.field("batch_tokens", batch_tokens,
          {.help = "tokens an update, whole rows", .min = 1, .max = 1 << 24});
  loss.visit(v);
  v.section("optim", optim, "its optimizer");
}

void CheckpointOptions::visit(OptionVisitor& v) {
  v.field("keep_last", keep_last,
          {.help = "older checkpoints are deleted, and the samples of the steps before the oldest",
           .min = 1,
           .max = kMaxCount,
           .resume = Resume::kMayChange});
}

void validate(const OptimOptions& o, std::string_view section) {
  const std::string betas = join_key(section, "betas");
  if (o.betas.size() != 2)
    throw UserError::at(betas, "has {} numbers; it must have 2. Try [0.9, 0.999].", o.betas.size());
  for (double beta : o.betas) {
    // At 1 the bias correction 1 - beta^t would be 0.
    if (beta >= 0 && beta < 1) continue;
    throw UserError::at(betas, "holds {}; both must be from 0 to below 1. Try [0.9, 0.999].", beta);
  }
}

void validate(const SftOptions& o, std::string_view section) {
  if (!o.data.empty() && o.demonstrations > 0) {
    throw UserError::at(join_key(section, "data"),
                        "and {} are both set; the warm-up learns from one of them.",
                        join_key(section, "demonstrations"));
  }
  validate(o.optim, join_key(section, "optim"));
}

void validate(const PreferenceOptions& o, std::string_view section) {
  validate(o.loss, section);
  validate(o.optim, join_key(section, "optim"));
  // z is a mean over the update, and that of one row is its own noise.
  if (!is_paired(o.loss.kind) && o.batch_rows < 2)
    throw UserError::at(join_key(section, "batch_rows"),
                        "is {}, but kto compares the rows of an update with their mean divergence. "
                        "Try 32.",
                        o.batch_rows);
}

void validate(const RewardModelOptions& o, std::string_view section) {
  validate(o.optim, join_key(section, "optim"));
}

void validate(const DistillStageOptions& o, std::string_view section) {
  const std::string loss = join_key(section, "loss");
  if (o.loss.kind == DistillLoss::kPolicyGradient || o.loss.kind == DistillLoss::kRefKl)
    throw UserError::at(loss,
                        "is {}, which reads the probability of the policy that sampled, and rows "
                        "have none. Try jsd.",
                        name_of(o.loss.kind));
  if (needs_support(o.loss.kind) && o.loss.support == SupportOf::kStudent)
    throw UserError::at(join_key(section, "support"),
                        "is student, and the teacher scores rows before the policy learns from "
                        "them. Use teacher.");
  validate(o.loss, section);
  validate(o.optim, join_key(section, "optim"));
}

}  // namespace tailrace
