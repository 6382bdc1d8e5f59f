#include "core/text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/text/byte_alphabet.h"
#include "core/text/utf8.h"

namespace tailrace::text {

namespace {

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

// The merge of two neighbours. With kNoRank they stay two, but they are characters between which
// the join of some longer tokens runs.
struct Merge {
  int32_t rank = kNoRank;
  TokenId id = -1;  // of the joined token
};

// (left id, right id) -> Merge; open addressing, at most half full.
class MergeTable {
 public:
  // The size is a power of two, 2^k: this shift leaves the upper k bits, which are a slot.
  explicit MergeTable(size_t num_pairs)
      : slots_(std::bit_ceil(std::max<size_t>(4, 2 * num_pairs))),
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
  Merge merge;                      // with the one after; kNoRank: none
};

struct Candidate {
  int32_t rank, at;
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
    // SentencePiece's names for bytes.
    for (int byte = 0; byte < 256 && options_.byte_fallback; ++byte)
      byte_ids_[byte] = find(fmt::format("<0x{:02X}>", byte));
    TokenId last = -1;
    for (const auto& [token, id] : this->vocabulary()) {
      last = std::max(last, id);
      if (token.empty()) continue;
      size_t end = 0;
      const char32_t c = next_code_point(token, end);
      // An index instead of a hash of a string: each character of each text is looked up once.
      if (end == token.size() && c < character_ids_.size()) character_ids_[c] = id;
    }
    // Found by running the merges over each token's own text, for not every token is reached: a
    // merge of lower rank inside of it may lead elsewhere. encode() may take such a piece whole,
    // since merges depend on nothing around the piece.
    stands_.resize(last + 1);
    Scratch scratch;
    std::vector<TokenId> ids;
    for (const auto& [token, id] : this->vocabulary()) {
      ids.clear();
      merge_characters(token, scratch, ids);
      stands_[id] = ids.size() == 1 && ids[0] == id;
    }
  }

  TokenId unknown() const override { return options_.unk; }

  bool covers_all_text() const override {
    if (options_.unk >= 0 && !options_.fuse_unk) return true;
    const auto all_bytes = [](const auto& has) {
      for (int byte = 0; byte < 256; ++byte)
        if (!has(static_cast<uint8_t>(byte))) return false;
      return true;
    };
    return all_bytes([&](uint8_t byte) { return byte_ids_[byte] >= 0; }) ||
           all_bytes([&](uint8_t byte) { return find(byte_character(byte)) >= 0; });
  }

  void encode(const Pieces& pieces, std::vector<TokenId>& out) const override {
    Scratch scratch;
    for (const Span& span : pieces.spans) {
      const std::string_view piece = pieces.piece(span);
      // Llama 3's rule, ignore_merges: a piece that is a token is that token, even where merges
      // would not lead there. Elsewhere only where they do, which saves them.
      const TokenId whole = find(piece);
      if (whole >= 0 && (options_.ignore_merges || stands_[whole])) {
        out.push_back(whole);
      } else {
        encode_piece(piece, scratch, out);
      }
    }
  }

 private:
  // A piece may be a whole document. Where no merge can ever join two characters it is cut: what
  // is between two cuts is often one token, and always a small heap.
  void encode_piece(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
    size_t begin = 0;
    TokenId before = -1;
    for (size_t at = 0; at < piece.size();) {
      const size_t here = at;
      const TokenId id = character_at(piece, at);
      // Not beside a character that the vocabulary lacks: it may be left out, or be one unknown
      // token with its neighbour.
      if (before >= 0 && id >= 0 && merges_.find(before, id) == nullptr) {
        encode_part(piece.substr(begin, here - begin), scratch, out);
        begin = here;
      }
      before = id;
    }
    if (begin == 0) return merge_characters(piece, scratch, out);
    encode_part(piece.substr(begin), scratch, out);
  }

  void encode_part(std::string_view part, Scratch& scratch, std::vector<TokenId>& out) const {
    const TokenId whole = find(part);
    if (whole >= 0 && stands_[whole]) {
      out.push_back(whole);
    } else {
      merge_characters(part, scratch, out);
    }
  }

  void merge_characters(std::string_view text, Scratch& scratch, std::vector<TokenId>& out) const {
    split_characters(text, scratch.symbols);
    merge(scratch);
    for (int32_t at = scratch.symbols.empty() ? -1 : 0; at >= 0; at = scratch.symbols[at].after) {
      out.push_back(scratch.symbols[at].id);
    }
  }

  // The token of the character at `at`, which moves past it; -1: none.
  TokenId character_at(std::string_view text, size_t& at) const {
    const size_t begin = at;
    const char32_t c = next_code_point(text, at);
    return c < character_ids_.size() ? character_ids_[c] : find(text.substr(begin, at - begin));
  }

  // One symbol a character; its bytes, or the unknown token, where the vocabulary lacks it. A
  // character with none of these is left out, as Hugging Face does.
  void split_characters(std::string_view text, std::vector<Symbol>& symbols) const {
    symbols.clear();
    bool after_unk = false;
    auto push = [&](TokenId id) {
      auto at = static_cast<int32_t>(symbols.size());
      if (at > 0) symbols.back().after = at;
      symbols.push_back({.id = id, .before = at - 1, .after = -1, .merge = {}});
    };
    for (size_t at = 0; at < text.size();) {
      size_t begin = at;
      TokenId id = character_at(text, at);
      if (id >= 0) {
        push(id);
        after_unk = false;
        continue;
      }
      // All or none, as Hugging Face does: a character that lacks one byte token is unknown as a
      // whole.
      std::string_view character = text.substr(begin, at - begin);
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

  // Joins the pair of lowest rank until none is left: O(n log n), for nothing may cut a long text.
  void merge(Scratch& scratch) const {
    auto& [symbols, heap] = scratch;
    heap.clear();
    auto offer = [&](int32_t at) {
      if (at < 0) return;
      Symbol& left = symbols[at];
      const Merge* m = left.after < 0 ? nullptr : merges_.find(left.id, symbols[left.after].id);
      left.merge = m == nullptr ? Merge{} : *m;
      if (left.merge.rank == kNoRank) return;
      heap.push_back({left.merge.rank, at});
      std::push_heap(heap.begin(), heap.end());
    };
    for (int32_t at = 0; at + 1 < static_cast<int32_t>(symbols.size()); ++at) offer(at);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end());
      const Candidate best = heap.back();
      heap.pop_back();
      Symbol& left = symbols[best.at];
      // One side has changed since, or was absorbed: passing such a candidate over here is cheaper
      // than finding it in the heap.
      if (left.merge.rank != best.rank) continue;
      Symbol& right = symbols[left.after];
      left.id = left.merge.id;
      left.after = right.after;
      right.merge = {};
      if (left.after >= 0) symbols[left.after].before = best.at;
      offer(left.before);
      offer(best.at);
    }
  }

  MergeTable merges_;
  BpeOptions options_;
  std::array<TokenId, 256> byte_ids_;  // -1: no byte token
  // By code point, for all that have three bytes at most; -1: none.
  std::vector<TokenId> character_ids_ = std::vector<TokenId>(0x10000, -1);
  std::vector<char> stands_;  // by id: the token's text becomes it by merges
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
  struct Line {
    TokenId left, right, joined;
  };
  std::vector<Line> joins;
  std::set<std::pair<TokenId, TokenId>> characters;  // on both sides of a join
  for (const JsonPart& line : lines) {
    auto [left, right] = parse_merge(line);
    joins.push_back({id_of(left, line), id_of(right, line), id_of(left + right, line)});
    if (left.empty() || right.empty()) continue;
    size_t end = 0;
    next_code_point(right, end);
    auto last = vocabulary.find(std::string_view(left).substr(last_code_point(left)));
    auto first = vocabulary.find(std::string_view(right).substr(0, end));
    if (last != vocabulary.end() && first != vocabulary.end())
      characters.insert({last->second, first->second});
  }
  MergeTable merges(joins.size() + characters.size());
  // Before the joins: where two characters are themselves a join, its entry must overwrite this
  // one, which has no rank.
  for (const auto& [last, first] : characters) merges.insert(last, first, {});
  // The place in the list is the rank; the file holds no other number for it.
  for (size_t rank = 0; rank < joins.size(); ++rank)
    merges.insert(joins[rank].left, joins[rank].right,
                  {static_cast<int32_t>(rank), joins[rank].joined});
  return std::make_unique<Bpe>(std::move(vocabulary), std::move(merges), options);
}

}  // namespace tailrace::text
