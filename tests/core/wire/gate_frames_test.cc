#include "core/wire/gate_frames.h"

#include <gtest/gtest.h>

#include "core/base/digest_of.h"
#include "core/base/random.h"
#include "core/wire/frame.h"
#include "tests/core/wire/samples.h"

namespace tailrace::wire {
namespace {

const std::string kDigest = "0123456789abcdef0123456789abcdef";

FileFacts sample_facts() {
  FileFacts facts{.name = "weights/p0-v3.json",
                  .digest = kDigest,
                  .bytes = 2 * kChunkBytes + 1,
                  .apparent_bytes = 4 * kChunkBytes,
                  .chunks = {}};
  for (const char* text : {"a", "b", "c"})
    facts.chunks.push_back(digest_of(std::string_view(text)));
  return facts;
}

const std::string kKey = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

RelayList sample_relays() {
  RelayList list{
      .digest = {}, .relays = {{"rollout-3", "tcp://10.1.0.7:7702", kKey}}, .guests = {kKey}};
  list.digest = digest_of_relays(list);
  return list;
}

std::vector<GateMessage> one_of_each_gate_message() {
  return {AskFile{7, "weights/p0-v3.json"},
          sample_facts(),
          AskChunk{7, kDigest, 2},
          Chunk{kDigest, 2, std::vector<std::byte>(1000, std::byte{5})},
          LogLines{7, 41, {{LogLevel::kWarning, "one"}, {LogLevel::kError, ""}}},
          LogTaken{42},
          Leave{7},
          AskRelays{7, kDigest},
          sample_relays()};
}

template <class Type>
Type back(const GateMessage& message) {
  auto decoded = decode_gate_message(encode(message));
  if (!decoded) {
    ADD_FAILURE() << decoded.failure().message;
    return {};
  }
  return std::get<Type>(decoded.value());
}
std::string refusal_of(const GateMessage& message) {
  const auto decoded = decode_gate_message(encode(message));
  return decoded ? "" : decoded.failure().message;
}

TEST(GateFrames, AListOfRelaysIsProvedAndMakesSense) {
  EXPECT_EQ(back<AskRelays>(AskRelays{7, ""}).known, "");
  EXPECT_EQ(back<AskRelays>(AskRelays{7, kDigest}).known, kDigest);
  const RelayList sent = sample_relays(), list = back<RelayList>(sent);
  ASSERT_EQ(list.relays.size(), 1u);
  EXPECT_EQ(list.relays[0].name, "rollout-3");
  EXPECT_EQ(list.relays[0].address, "tcp://10.1.0.7:7702");
  EXPECT_EQ(list.relays[0].public_key, kKey);
  EXPECT_EQ(list.guests, sent.guests);
  EXPECT_EQ(list.digest, sent.digest);
  const auto refused = [](auto change) {
    RelayList wrong = sample_relays();
    change(wrong);
    wrong.digest = digest_of_relays(wrong);
    return refusal_of(wrong);
  };
  for (const char* address : {"", "tcp://*:1", "ipc:///tmp/x", "tcp://a", "tcp://a:0"})
    EXPECT_NE(refused([&](RelayList& l) { l.relays[0].address = address; }), "") << address;
  EXPECT_NE(refused([](RelayList& l) { l.relays[0].name = "a b"; }), "");
  EXPECT_NE(refused([](RelayList& l) { l.relays[0].public_key = "short"; }), "");
  EXPECT_NE(refused([](RelayList& l) { l.guests[0].back() = '"'; }), "");
  EXPECT_NE(refused([](RelayList& l) { l.guests.assign(513, kKey); }), "");
  RelayList other = sample_relays();
  other.guests.clear();
  EXPECT_EQ(refusal_of(other), "RelayList: another digest than that of the list");
}

TEST(GateFrames, ComeBackAsTheyWent) {
  const auto ask = back<AskFile>(AskFile{7, "weights/p0-v3.json"});
  EXPECT_EQ(ask.incarnation, 7u);
  EXPECT_EQ(ask.name, "weights/p0-v3.json");
  const FileFacts sent = sample_facts(), facts = back<FileFacts>(sent);
  EXPECT_EQ(facts.name, sent.name);
  EXPECT_EQ(facts.status, sent.status);
  EXPECT_EQ(facts.digest, sent.digest);
  EXPECT_EQ(facts.bytes, sent.bytes);
  EXPECT_EQ(facts.apparent_bytes, sent.apparent_bytes);
  EXPECT_EQ(facts.chunk_bytes, sent.chunk_bytes);
  EXPECT_EQ(facts.chunks, sent.chunks);
  const auto absent = back<FileFacts>(
      FileFacts{.name = "x", .status = FileFacts::Status::kAbsent, .reason = "why", .chunks = {}});
  EXPECT_EQ(absent.status, FileFacts::Status::kAbsent);
  EXPECT_EQ(absent.reason, "why");
  FileFacts later = sample_facts();
  later.status = FileFacts::Status::kLater;
  later.chunks[0] = "nobody has proved it";
  EXPECT_TRUE(back<FileFacts>(later).chunks.empty());
  EXPECT_EQ(back<FileFacts>(later).digest, "");
  const auto chunk_ask = back<AskChunk>(AskChunk{8, kDigest, 2});
  EXPECT_EQ(chunk_ask.incarnation, 8u);
  EXPECT_EQ(chunk_ask.digest, kDigest);
  EXPECT_EQ(chunk_ask.index, 2);
  Rng rng(1);
  std::vector<std::byte> bytes(kMaxChunkBytes);
  for (auto& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  const auto chunk = back<Chunk>(Chunk{kDigest, 2, bytes});
  EXPECT_EQ(chunk.digest, kDigest);
  EXPECT_EQ(chunk.index, 2);
  EXPECT_EQ(chunk.bytes, bytes);
  EXPECT_LE(std::ssize(encode(Chunk{kDigest, 2, bytes})), kMaxFrameBytes);
  const auto lines =
      back<LogLines>(LogLines{7, 41, {{LogLevel::kWarning, "one"}, {LogLevel::kError, ""}}});
  EXPECT_EQ(lines.incarnation, 7u);
  EXPECT_EQ(lines.first, 41u);
  ASSERT_EQ(lines.lines.size(), 2u);
  EXPECT_EQ(lines.lines[0].text, "one");
  EXPECT_EQ(lines.lines[1].level, LogLevel::kError);
  EXPECT_EQ(back<LogTaken>(LogTaken{42}).through, 42u);
  EXPECT_EQ(back<Leave>(Leave{7}).incarnation, 7u);
}

TEST(GateFrames, AnEmptyFileHasNoChunks) {
  const auto facts = back<FileFacts>(FileFacts{.name = "x", .digest = kDigest, .chunks = {}});
  EXPECT_EQ(facts.bytes, 0);
  EXPECT_TRUE(facts.chunks.empty());
  EXPECT_EQ(num_chunks(0, kChunkBytes), 0);
  EXPECT_EQ(num_chunks(kChunkBytes, kChunkBytes), 1);
  EXPECT_EQ(num_chunks(kChunkBytes + 1, kChunkBytes), 2);
}

// The largest file that is given in chunks has facts that fit into a frame.
TEST(GateFrames, FactsOfTheLargestFileFitIntoAFrame) {
  FileFacts facts{.name = std::string(1024, 'n'),
                  .digest = kDigest,
                  .bytes = kMaxChunks * kMaxChunkBytes,
                  .apparent_bytes = kMaxChunks * kMaxChunkBytes,
                  .chunk_bytes = kMaxChunkBytes,
                  .chunks = std::vector<Digest>(kMaxChunks, kDigest)};
  EXPECT_LE(std::ssize(encode(facts)), kMaxFrameBytes);
  EXPECT_EQ(std::ssize(back<FileFacts>(facts).chunks), kMaxChunks);
}

TEST(GateFrames, ValuesOutOfRangeAreRefused) {
  EXPECT_NE(refusal_of(AskFile{7, std::string(1025, 'n')}), "");
  for (const std::string& digest : {std::string(), kDigest.substr(1), kDigest + "0",
                                    std::string(32, 'g'), std::string(32, 'A')}) {
    EXPECT_NE(refusal_of(AskChunk{7, digest, 0}), "") << digest;
    EXPECT_NE(refusal_of(Chunk{digest, 0, {}}), "") << digest;
  }
  for (const int64_t index : {int64_t{-1}, INT64_MIN, INT64_MAX})
    EXPECT_NE(refusal_of(AskChunk{7, kDigest, index}), "") << index;
  EXPECT_NE(refusal_of(Chunk{kDigest, 0, std::vector<std::byte>(kMaxChunkBytes + 1)}), "");
  const auto facts = [](auto change) {
    FileFacts changed = sample_facts();
    change(changed);
    return refusal_of(changed);
  };
  EXPECT_EQ(facts([](FileFacts&) {}), "");
  EXPECT_NE(facts([](FileFacts& f) { f.bytes = -1; }), "");
  EXPECT_NE(facts([](FileFacts& f) { f.bytes = INT64_MAX; }), "");
  EXPECT_NE(facts([](FileFacts& f) { f.bytes = f.apparent_bytes + 1; }), "");
  EXPECT_NE(facts([](FileFacts& f) { f.apparent_bytes = INT64_MAX; }), "");
  EXPECT_NE(facts([](FileFacts& f) { f.chunk_bytes = 0; }), "");
  EXPECT_NE(facts([](FileFacts& f) { f.chunk_bytes = -1; }), "");
  EXPECT_NE(facts([](FileFacts& f) { f.chunk_bytes = kMaxChunkBytes + 1; }), "");
  EXPECT_NE(facts([](FileFacts& f) { f.chunks.pop_back(); }), "");
  EXPECT_NE(facts([](FileFacts& f) { f.chunks.push_back(kDigest); }), "");
  EXPECT_NE(facts([](FileFacts& f) { f.chunks[1][3] = 'x'; }), "");
  EXPECT_NE(facts([](FileFacts& f) { f.status = FileFacts::Status(3); }), "");
  EXPECT_NE(refusal_of(LogLines{7, 1, {{LogLevel(4), "x"}}}), "");
  EXPECT_NE(refusal_of(LogLines{7, 1, std::vector<LogLine>(257)}), "");
}

TEST(GateFrames, ALineThatIsTooLongIsCut) {
  const auto lines =
      back<LogLines>(LogLines{7, 1, {{LogLevel::kError, std::string(100'000, 'x')}}});
  ASSERT_EQ(lines.lines.size(), 1u);
  EXPECT_EQ(lines.lines[0].text.size(), 2000u);
}

// Each kind of frame has an identifier of its own.
TEST(GateFrames, AreNoFramesOfTheRunAndTheOtherWayRound) {
  for (const GateMessage& message : one_of_each_gate_message())
    EXPECT_FALSE(decode_header(encode(message)));
  for (const Message& message : test::one_of_each())
    EXPECT_FALSE(decode_gate_message(encode({}, message)));
}

void expect_sense(const GateMessage& message) {
  if (const auto* facts = std::get_if<FileFacts>(&message)) {
    if (facts->status != FileFacts::Status::kThere) return;
    EXPECT_EQ(std::ssize(facts->chunks), num_chunks(facts->bytes, facts->chunk_bytes));
    EXPECT_LE(facts->bytes, facts->apparent_bytes);
    EXPECT_EQ(facts->digest.size(), 32u);
  } else if (const auto* ask = std::get_if<AskChunk>(&message)) {
    EXPECT_GE(ask->index, 0);
    EXPECT_EQ(ask->digest.size(), 32u);
  } else if (const auto* chunk = std::get_if<Chunk>(&message)) {
    EXPECT_GE(chunk->index, 0);
    EXPECT_LE(std::ssize(chunk->bytes), kMaxChunkBytes);
  } else if (const auto* lines = std::get_if<LogLines>(&message)) {
    EXPECT_LE(lines->lines.size(), 256u);
    for (const LogLine& line : lines->lines) EXPECT_LE(line.text.size(), 2000u);
  }
}

TEST(GateFrames, AnyDamageIsRefusedOrMakesSense) {
  Rng rng(23);
  int64_t accepted = 0, refused = 0;
  for (const GateMessage& message : one_of_each_gate_message()) {
    const std::vector<std::byte> whole = encode(message);
    const auto look = [&](const std::vector<std::byte>& bytes) {
      const auto decoded = decode_gate_message(bytes);
      if (decoded) expect_sense(decoded.value());
      ++(decoded ? accepted : refused);
    };
    for (size_t size = 0; size < whole.size(); ++size)
      look({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)});
    for (int i = 0; i < 4000; ++i) {
      std::vector<std::byte> bytes = whole;
      // Where the structure lies, most of all.
      const int64_t reach = std::min<int64_t>(std::ssize(bytes), i % 2 == 0 ? 160 : 100'000);
      for (int64_t n = 1 + rng.below(4); n > 0; --n)
        bytes[static_cast<size_t>(rng.below(reach))] = static_cast<std::byte>(rng.below(256));
      look(bytes);
    }
    for (int i = 0; i < 500; ++i) {
      // The frame of another place in memory: no alignment is taken for granted.
      std::vector<std::byte> shifted(whole.size() + 8);
      const auto offset = static_cast<size_t>(rng.below(8));
      std::ranges::copy(whole, shifted.begin() + static_cast<ptrdiff_t>(offset));
      EXPECT_TRUE(decode_gate_message(std::span(shifted).subspan(offset, whole.size())));
    }
  }
  for (int i = 0; i < 4000; ++i) {
    std::vector<std::byte> bytes(static_cast<size_t>(rng.below(200)));
    for (auto& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
    // With the right identifier the verifier looks further.
    if (bytes.size() >= 8) std::memcpy(bytes.data() + 4, "TRG2", 4);
    const auto decoded = decode_gate_message(bytes);
    if (decoded) expect_sense(decoded.value());
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace tailrace::wire
