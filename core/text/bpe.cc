#include "core/text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/text/utf8.h"

namespace tailrace::text {

namespace {

struct Merge {
  int32_t rank = 0;
  TokenId id = 0;  // of the joined token
};

// (left id, right id) -> Merge; open addressing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(size_t num_merges)
      : slots_(std::bit_ceil(std::max<size_t>(4, 2 * num_merges))),
        shift_(64 - std::countr_zero(slots_.size())) {}

  // The last of equal pairs counts.
  void insert(TokenId left, TokenId right, Merge merge) {
    slots_[slot(key(left, right))] = {key(left, right), merge};
  }
  const Merge* find(TokenId left, TokenId right) const {
    const Slot& s = slots_[slot(key(left, right))];
    return s.key == kEmpty ? nullptr : &s.merge;
  }

 private:
  // No pair has this key, since ids are not negative.
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t key(TokenId left, TokenId right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot(uint64_t k) const {
    // Fibonacci hashing: the upper bits of the product, since ids are small and alike.
    size_t at = (k * 0x9E3779B97F4A7C15u) >> shift_;
    // A search ends at an empty slot, so the table must never become full.
    while (slots_[at].key != kEmpty && slots_[at].key != k) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<Slot> slots_;
  int shift_;
};

// A list threaded through a vector: a merge unlinks its right side and moves nothing, so the places
// that candidates hold stay good.
struct Symbol {
  TokenId id = 0;
  int32_t before = -1, after = -1;  // neighbours, -1: none
  bool alive = true;
};

struct Candidate {
  int32_t rank, at;
  TokenId id;
  // Lowest rank first, then the left-most.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

// Kept from piece to piece: a text has thousands, most of them a few bytes long.
struct Scratch {
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

struct BpeOptions {
  bool ignore_merges = false;
  bool fuse_unk = false;
  bool byte_fallback = false;
  TokenId unk = -1;
};

class Bpe final : public TokenModel {
 public:
  Bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options)
      : TokenModel(std::move(vocabulary)), merges_(std::move(merges)), options_(options) {
    byte_ids_.fill(-1);
    if (!options_.byte_fallback) return;
    // SentencePiece's names for bytes.
    for (int byte = 0; byte < 256; ++byte) byte_ids_[byte] = find(fmt::format("<0x{:02X}>", byte));
  }

  TokenId unknown() const override { return options_.unk; }

  void encode(const Pieces& pieces, std::vector<TokenId>& out) const override {
    Scratch scratch;
    for (const Span& span : pieces.spans) {
      std::string_view piece = pieces.piece(span);
      // Llama 3's rule: a piece that is a token is that token, even where merges would not lead
      // there.
      TokenId whole = options_.ignore_merges ? find(piece) : -1;
      if (whole >= 0) {
        out.push_back(whole);
      } else {
        encode_piece(piece, scratch, out);
      }
    }
  }

 private:
  void encode_piece(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
    split_characters(piece, scratch.symbols);
    merge(scratch);
    for (int32_t at = scratch.symbols.empty() ? -1 : 0; at >= 0; at = scratch.symbols[at].after) {
      out.push_back(scratch.symbols[at].id);
    }
  }

  // One symbol a character; its bytes, or the unknown token, where the vocabulary lacks it. A
  // character with none of these is left out, as Hugging Face does.
  void split_characters(std::string_view piece, std::vector<Symbol>& symbols) const {
    symbols.clear();
    bool after_unk = false;
    auto push = [&](TokenId id) {
      auto at = static_cast<int32_t>(symbols.size());
      if (at > 0) symbols.back().after = at;
      symbols.push_back({.id = id, .before = at - 1});
    };
    for (size_t at = 0; at < piece.size();) {
      size_t begin = at;
      next_code_point(piece, at);
      std::string_view character = piece.substr(begin, at - begin);
      TokenId id = find(character);
      if (id >= 0) {
        push(id);
        after_unk = false;
        continue;
      }
      // All or none, as Hugging Face does: a character that lacks one byte token is unknown as a
      // whole.
      bool bytes = std::all_of(character.begin(), character.end(),
                               [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; });
      if (bytes) {
        for (char c : character) push(byte_ids_[static_cast<uint8_t>(c)]);
        after_unk = false;
      } else if (options_.unk >= 0) {
        if (!(options_.fuse_unk && after_unk)) push(options_.unk);
        after_unk = true;
      }
    }
  }

  // Joins the pair of lowest rank until none is left: O(n log n), for pieces may be whole
  // documents.
  void merge(Scratch& scratch) const {
    auto& [symbols, heap] = scratch;
    heap.clear();
    auto offer = [&](int32_t at) {
      if (at < 0 || symbols[at].after < 0) return;
      const Merge* m = merges_.find(symbols[at].id, symbols[symbols[at].after].id);
      if (m == nullptr) return;
      heap.push_back({m->rank, at, m->id});
      std::push_heap(heap.begin(), heap.end());
    };
    for (int32_t at = 0; at + 1 < static_cast<int32_t>(symbols.size()); ++at) offer(at);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      Candidate best = heap.back();
      heap.pop_back();
      Symbol& left = symbols[best.at];
      // A symbol that was absorbed leaves its candidates in the heap: passing them over here is
      // cheaper than finding them there.
      if (!left.alive || left.after < 0) continue;
      Symbol& right = symbols[left.after];
      // A candidate of before one of its sides changed is stale, unless the new pair means the
      // same.
      const Merge* m = merges_.find(left.id, right.id);
      if (m == nullptr || m->id != best.id || m->rank != best.rank) continue;
      left.id = best.id;
      left.after = right.after;
      right.alive = false;
      if (left.after >= 0) symbols[left.after].before = best.at;
      offer(left.before);
      offer(best.at);
    }
  }

  MergeTable merges_;
  BpeOptions options_;
  std::array<TokenId, 256> byte_ids_;  // -1: no byte token
};

std::pair<std::string, std::string> parse_merge(const JsonPart& part) {
  if (part.value().is_array()) {
    std::vector<JsonPart> sides = part.items();
    if (sides.size() == 2) return {sides[0].text(), sides[1].text()};
  } else {
    std::string text = part.text();
    size_t blank = text.find(' ');
    // With two blanks nobody knows where the left side ends; tokens with blanks come as lists.
    if (blank != std::string::npos && text.find(' ', blank + 1) == std::string::npos) {
      return {text.substr(0, blank), text.substr(blank + 1)};
    }
  }
  part.refuse("\"left right\" or [\"left\", \"right\"]");
}

}  // namespace

std::unique_ptr<TokenModel> parse_bpe(const JsonPart& part) {
  // They change the text that two sides join to. Refused, because ignoring them would give other
  // ids without a word.
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!part.text(affix, "").empty()) part.at(affix).refuse("null or \"\"");
  }
  // Dropout leaves merges out by chance: one text would have other ids at every call.
  if (part.has("dropout") && part.at("dropout").value() != 0.0)
    part.at("dropout").refuse("null or 0");
  Vocabulary vocabulary = parse_vocabulary(part.at("vocab"));
  auto id_of = [&](std::string_view token, const JsonPart& where) {
    auto it = vocabulary.find(token);
    if (it == vocabulary.end()) {
      throw UserError("{}: '{}' is not in the vocabulary", where.where(), token);
    }
    return it->second;
  };
  BpeOptions options{.ignore_merges = part.flag("ignore_merges", false),
                     .fuse_unk = part.flag("fuse_unk", false),
                     .byte_fallback = part.flag("byte_fallback", false)};
  if (std::string unk = part.text("unk_token", ""); !unk.empty()) {
    options.unk = id_of(unk, part.at("unk_token"));
  }
  std::vector<JsonPart> lines = part.at("merges").items();
  MergeTable merges(lines.size());
  // The place in the list is the rank; the file holds no other number for it.
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    auto [left, right] = parse_merge(lines[rank]);
    TokenId left_id = id_of(left, lines[rank]), right_id = id_of(right, lines[rank]);
    merges.insert(left_id, right_id,
                  {static_cast<int32_t>(rank), id_of(left + right, lines[rank])});
  }
  return std::make_unique<Bpe>(std::move(vocabulary), std::move(merges), options);
}

}  // namespace tailrace::text
