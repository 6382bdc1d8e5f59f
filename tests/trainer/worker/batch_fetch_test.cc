#include "trainer/worker/batch_fetch.h"

#include <algorithm>
#include <deque>

#include <gtest/gtest.h>

#include "core/wire/trajectory_codec.h"
#include "tests/trainer/fixtures.h"

namespace tailrace {
namespace {

// A batch and the bodies that a store would hold of it.
struct Stored {
  wire::Batch batch{.step = 1, .items = {}};
  std::vector<std::vector<std::byte>> bodies;

  wire::Payload answer(const wire::Fetch& fetch) const {
    std::vector<std::byte> all;
    for (const BodyId& id : fetch.bodies) {
      const auto item = std::ranges::find(batch.items, id.lease, &wire::Batch::Item::lease);
      const auto& body = bodies[static_cast<size_t>(item - batch.items.begin())];
      all.insert(all.end(), body.begin(), body.end());
    }
    const auto begin = all.begin() + fetch.offset;
    const auto end = begin + std::min<int64_t>(fetch.max_bytes, all.end() - begin);
    return {.request = fetch.request, .bytes = {begin, end}};
  }
};

Stored store(int num_trajectories) {
  Stored stored;
  for (const Trajectory& t : testing::random_trajectories(num_trajectories, 1)) {
    stored.bodies.push_back(wire::encode_trajectory(t));
    stored.batch.items.push_back({.lease = t.lease,
                                  .reward = static_cast<double>(stored.bodies.size()),
                                  .bytes = std::ssize(stored.bodies.back()),
                                  .checksum = wire::checksum_of(stored.bodies.back()),
                                  .judged = {}});
    if (stored.bodies.size() % 2 == 0) stored.batch.items.back().judged = 0.5;
  }
  return stored;
}

// Answers until nothing is asked for; returns how many requests there were.
int fetch_all(BatchFetch& fetch, const Stored& stored) {
  int requests = 0;
  for (auto out = fetch.next(); !out.empty(); out = fetch.next()) {
    for (const wire::Fetch& request : out) {
      EXPECT_TRUE(fetch.take(stored.answer(request)));
      ++requests;
    }
  }
  return requests;
}

TEST(BatchFetch, BringsTheSameTrajectoriesWhateverTheSizeOfAPiece) {
  const Stored stored = store(12);
  int64_t total = 0;
  for (const auto& body : stored.bodies) total += std::ssize(body);
  const int64_t one = std::ssize(stored.bodies[0]);
  for (int64_t piece :
       {int64_t{7}, one - 1, one, one + 1, 3 * one, total, BatchFetch::kPieceBytes}) {
    SCOPED_TRACE(piece);
    BatchFetch fetch(stored.batch, 100, piece);
    const int requests = fetch_all(fetch, stored);
    EXPECT_GE(requests, (total + piece - 1) / piece);
    EXPECT_EQ(fetch.end_request(), 100 + requests);
    ASSERT_TRUE(fetch.complete());
    const auto trajectories = fetch.trajectories();
    ASSERT_TRUE(trajectories) << trajectories.failure().message;
    ASSERT_EQ(trajectories.value().size(), stored.bodies.size());
    for (size_t i = 0; i < stored.bodies.size(); ++i) {
      Trajectory t = trajectories.value()[i];
      EXPECT_EQ(t.lease, stored.batch.items[i].lease);
      EXPECT_EQ(t.reward, stored.batch.items[i].reward) << "the scheduler's, not the body's";
      EXPECT_EQ(t.judged, stored.batch.items[i].judged);
    }
  }
}

// One too many is not answered, and its trainer would wait for ever. Those for a batch that is
// handed over once more may still be out.
static_assert(2 * BatchFetch::kMostOut <= wire::kMaxFetches);

TEST(BatchFetch, NoRequestAsksForMoreThanAPieceAndFewAreOut) {
  const Stored stored = store(12);
  BatchFetch fetch(stored.batch, 0, 500);
  std::deque<wire::Fetch> out;
  int64_t most = 0;
  while (!fetch.complete()) {
    for (wire::Fetch& request : fetch.next()) {
      EXPECT_LE(request.max_bytes, 500);
      out.push_back(std::move(request));
    }
    most = std::max(most, std::ssize(out));
    ASSERT_FALSE(out.empty());
    ASSERT_TRUE(fetch.take(stored.answer(out.front())));
    out.pop_front();
  }
  EXPECT_EQ(most, BatchFetch::kMostOut);
}

TEST(BatchFetch, AnswersInAnyOrderTwiceOrToAnotherQuestionDoNoHarm) {
  const Stored stored = store(3);
  BatchFetch fetch(stored.batch, 10, 200);
  EXPECT_TRUE(fetch.take({.request = 9, .bytes = {}})) << "of the fetch before";
  EXPECT_TRUE(fetch.take({.request = 10, .bytes = {}})) << "not asked for yet";
  for (auto out = fetch.next(); !out.empty(); out = fetch.next()) {
    std::ranges::reverse(out);
    for (const wire::Fetch& request : out) {
      EXPECT_TRUE(fetch.take(stored.answer(request)));
      EXPECT_TRUE(fetch.take(stored.answer(request)));
    }
  }
  ASSERT_TRUE(fetch.complete());
  EXPECT_TRUE(fetch.trajectories());
}

TEST(BatchFetch, AShortAnswerIsAFailure) {
  const Stored stored = store(2);
  BatchFetch fetch(stored.batch, 0);
  wire::Payload answer = stored.answer(fetch.next().front());
  answer.bytes.pop_back();
  const auto taken = fetch.take(answer);
  ASSERT_FALSE(taken);
  EXPECT_NE(taken.failure().message.find("were asked for"), std::string::npos);
  EXPECT_FALSE(fetch.complete());
}

TEST(BatchFetch, BytesThatAreNotThoseOfTheBatchAreNamed) {
  const Stored stored = store(2);
  const std::string second = to_string(stored.batch.items[1].lease);
  const auto failure = [](const Stored& given, const Stored& answers) {
    BatchFetch fetch(given.batch, 0);
    fetch_all(fetch, answers);
    const auto trajectories = fetch.trajectories();
    return trajectories ? std::string() : trajectories.failure().message;
  };
  Stored spoilt = stored;
  spoilt.bodies[1][40] ^= std::byte{1};
  EXPECT_NE(failure(stored, spoilt).find(second + ": its bytes have another checksum"),
            std::string::npos);

  Stored exchanged = stored;  // consistent in itself, but of another lease
  std::swap(exchanged.batch.items[0].lease, exchanged.batch.items[1].lease);
  EXPECT_NE(failure(exchanged, exchanged).find("the bytes are those of"), std::string::npos);
}

TEST(BatchFetch, AnEmptyBatchIsWholeAtOnce) {
  BatchFetch fetch(wire::Batch{.step = 1, .items = {}}, 5);
  EXPECT_TRUE(fetch.next().empty());
  EXPECT_TRUE(fetch.complete());
  EXPECT_EQ(fetch.end_request(), 5);
  EXPECT_TRUE(fetch.trajectories().value().empty());
}

}  // namespace
}  // namespace tailrace
