#include "core/wire/link.h"

#include <map>

#include <gtest/gtest.h>

#include "core/base/random.h"

namespace tailrace::wire {
namespace {

using std::chrono::milliseconds;

Link::Body body_of(int64_t number) {
  return std::make_shared<const std::vector<std::byte>>(
      encode({}, Progress{"test", number, 0, {}}));
}

int64_t number_in(const Link::Body& body) {
  return std::get<Progress>(decode(*body).value().message).done;
}

struct Frame {
  Header header;
  int64_t number = 0;  // 0: a bare heartbeat
};

Frame frame_of(const Link::Transmission& t) { return {t.header, t.body ? number_in(t.body) : 0}; }

// Two ends and a transport between them that loses, doubles and reorders, driven by one seed.
class Exchange {
 public:
  Exchange(uint64_t seed, double trouble) : rng_(seed), trouble_(trouble) {}

  void run(int messages) {
    int64_t pushed = 0;
    for (int turn = 0; turn < 200'000; ++turn) {
      now_ += milliseconds(10);
      if (pushed < messages && rng_.chance(0.5)) {
        ++pushed;
        ends_[0].link.push(body_of(pushed));
        ends_[1].link.push(body_of(pushed));
      }
      for (int end : {0, 1}) turn_of(end);
      const bool done = pushed == messages && ends_[0].link.idle() && ends_[1].link.idle();
      if (done) return;
    }
    FAIL() << "stands still";
  }

  const std::vector<int64_t>& received_by(int end) const { return ends_[end].received; }
  const Link& link(int end) const { return ends_[end].link; }

 private:
  struct End {
    Link link{7, LinkOptions{}, Time(0)};
    std::vector<int64_t> received;
    std::vector<uint64_t> to_take_over;
  };

  void turn_of(int end) {
    End& self = ends_[end];
    for (const auto& transmission : self.link.due(now_)) {
      if (rng_.chance(trouble_)) continue;
      const int copies = rng_.chance(trouble_) ? 2 : 1;
      for (int i = 0; i < copies; ++i) {
        const Time at = now_ + milliseconds(rng_.chance(trouble_) ? rng_.below(300) : 1);
        wire_[1 - end].insert({at, frame_of(transmission)});
      }
    }
    while (!wire_[end].empty() && wire_[end].begin()->first <= now_) {
      const Frame frame = wire_[end].begin()->second;
      wire_[end].erase(wire_[end].begin());
      if (self.link.on_frame(frame.header, now_) == Link::Verdict::kDeliver) {
        self.received.push_back(frame.number);
        self.to_take_over.push_back(frame.header.sequence);
      }
    }
    // The owner takes over late and in lumps, as a service does that waits for its disk.
    if (!self.to_take_over.empty() && rng_.chance(0.1)) {
      self.link.take_over(self.to_take_over.back());
      self.to_take_over.clear();
    }
  }

  Rng rng_;
  double trouble_;
  Time now_{0};
  End ends_[2];
  std::multimap<Time, Frame> wire_[2];
};

std::vector<int64_t> counting_to(int64_t last) {
  std::vector<int64_t> numbers;
  for (int64_t i = 1; i <= last; ++i) numbers.push_back(i);
  return numbers;
}

TEST(Link, DeliversEachMessageOnceAndInOrderOverABadTransport) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    Exchange exchange(seed, seed % 3 == 0 ? 0.0 : 0.2);
    exchange.run(100);
    EXPECT_EQ(exchange.received_by(0), counting_to(100));
    EXPECT_EQ(exchange.received_by(1), counting_to(100));
    EXPECT_EQ(exchange.link(0).counters().sent, 100);
    EXPECT_EQ(exchange.link(0).counters().received, 100);
    if (seed % 3 != 0) {
      EXPECT_GT(exchange.link(0).counters().resent, 0);
    }
  }
}

TEST(Link, AcknowledgesOnlyWhatItsOwnerTookOver) {
  Link link(7, LinkOptions{}, Time(0));
  ASSERT_EQ(link.on_frame({7, 1, 0}, Time(1)), Link::Verdict::kDeliver);
  ASSERT_EQ(link.on_frame({7, 2, 0}, Time(1)), Link::Verdict::kDeliver);
  EXPECT_TRUE(link.due(Time(2)).empty());
  link.take_over(1);
  auto out = link.due(Time(3));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].body, nullptr);
  EXPECT_EQ(out[0].header.ack, 1u);
  EXPECT_TRUE(link.due(Time(4)).empty());
}

TEST(Link, DropsDuplicatesAndTellsTheSenderAgain) {
  Link link(7, LinkOptions{}, Time(0));
  ASSERT_EQ(link.on_frame({7, 1, 0}, Time(1)), Link::Verdict::kDeliver);
  link.take_over(1);
  ASSERT_EQ(link.due(Time(2)).size(), 1u);
  EXPECT_EQ(link.on_frame({7, 1, 0}, Time(3)), Link::Verdict::kDrop);
  auto out = link.due(Time(4));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].header.ack, 1u);
  EXPECT_EQ(link.counters().duplicates, 1);
}

TEST(Link, LeavesAMessageAfterAGapToBeSentAgain) {
  Link link(7, LinkOptions{}, Time(0));
  EXPECT_EQ(link.on_frame({7, 2, 0}, Time(1)), Link::Verdict::kDrop);
  EXPECT_EQ(link.counters().early, 1);
  EXPECT_EQ(link.on_frame({7, 1, 0}, Time(2)), Link::Verdict::kDeliver);
  EXPECT_EQ(link.on_frame({7, 2, 0}, Time(3)), Link::Verdict::kDeliver);
}

TEST(Link, SendsAgainToALivingPeerButNotToASilentOne) {
  LinkOptions options;
  Link link(7, options, Time(0));
  link.push(body_of(1));
  ASSERT_EQ(link.due(Time(1)).size(), 1u);
  // Silent: only heartbeats, however long it lasts.
  for (const auto& t : link.due(milliseconds(3000))) EXPECT_EQ(t.body, nullptr);
  EXPECT_GT(link.next_due(), milliseconds(3000));
  // A sign of life without an acknowledgement.
  link.on_frame({7, 0, 0}, milliseconds(3100));
  auto out = link.due(milliseconds(3100));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].header.sequence, 1u);
  EXPECT_EQ(link.counters().resent, 1);
}

TEST(Link, AsksASlowOwnerLessAndLessOften) {
  Link link(7, LinkOptions{}, Time(0));
  link.push(body_of(1));
  int transmissions = 0;
  for (Time now(0); now < std::chrono::seconds(60); now += milliseconds(100)) {
    link.on_frame({7, 0, 0}, now);
    for (const auto& t : link.due(now)) transmissions += t.body != nullptr;
  }
  EXPECT_GE(transmissions, 5);
  EXPECT_LE(transmissions, 12);  // 1 + 2 + 4 + 8 + 8 + ... seconds apart
}

TEST(Link, GivesWhatTheSocketRefusedAgain) {
  Link link(7, LinkOptions{}, Time(0));
  for (int i = 1; i <= 3; ++i) link.push(body_of(i));
  auto out = link.due(Time(1));
  ASSERT_EQ(out.size(), 3u);
  link.not_sent(out[1].header);
  EXPECT_EQ(link.next_due(), Time::min());
  out = link.due(Time(2));
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].header.sequence, 2u);
}

TEST(Link, SendsAllAgainAfterTheConnectionChanged) {
  Link link(7, LinkOptions{}, Time(0));
  for (int i = 1; i <= 3; ++i) link.push(body_of(i));
  ASSERT_EQ(link.due(Time(1)).size(), 3u);
  link.on_frame({7, 0, 1}, Time(2));
  link.resend_all();
  auto out = link.due(Time(3));
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].header.sequence, 2u);
  EXPECT_EQ(number_in(out[0].body), 2);
}

// Its owner may be slow: the next session needs it, this one does not.
TEST(Link, DoesNotSendAgainWhatHasArrived) {
  Link link(7, LinkOptions{}, Time(0));
  for (int i = 1; i <= 3; ++i) link.push(body_of(i));
  ASSERT_EQ(link.due(Time(1)).size(), 3u);
  for (Time now(0); now < std::chrono::seconds(60); now += milliseconds(100)) {
    link.on_frame({.session = 7, .received = 3}, now);
    for (const auto& t : link.due(now)) EXPECT_EQ(t.body, nullptr);
  }
  link.resend_all();
  for (const auto& t : link.due(std::chrono::seconds(60))) EXPECT_EQ(t.body, nullptr);
  EXPECT_EQ(link.counters().resent, 0);
  EXPECT_EQ(link.release().size(), 3u);
}

TEST(Link, SendsAgainFromTheFirstThatHasNotArrived) {
  Link link(7, LinkOptions{}, Time(0));
  for (int i = 1; i <= 3; ++i) link.push(body_of(i));
  ASSERT_EQ(link.due(Time(1)).size(), 3u);
  link.on_frame({.session = 7, .ack = 1, .received = 2}, Time(2));
  link.on_frame({.session = 7, .ack = 1, .received = 9}, Time(2));  // never sent: ignored
  link.resend_all();
  const auto out = link.due(Time(3));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].header.sequence, 3u);
  EXPECT_EQ(link.num_unacknowledged(), 2);
  // It arrives late after all, and is known to when it would go out once more.
  link.resend_all();
  link.on_frame({.session = 7, .ack = 1, .received = 3}, Time(4));
  EXPECT_GT(link.next_due(), Time(4));
}

// A few large messages fill the window; heartbeats pass beside it.
TEST(Link, HasLittleOnItsWay) {
  constexpr int64_t kLarge = kWindowBytes / 4;
  const auto large = std::make_shared<const std::vector<std::byte>>(kLarge);
  LinkOptions options;
  Link link(7, options, Time(0));
  for (int i = 0; i < 12; ++i) link.push(large);
  Time now(1);
  EXPECT_EQ(link.due(now).size(), 4u);
  EXPECT_GT(link.next_due(), now) << "it would be asked for ever";
  now += options.heartbeat;
  auto out = link.due(now);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].header.sequence, 0u);
  link.on_frame({.session = 7, .received = 3}, now);
  EXPECT_EQ(link.next_due(), Time::min());
  out = link.due(now);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].header.sequence, 5u);
  // What the socket refuses is not on its way.
  link.not_sent(out[1].header);
  out = link.due(now);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].header.sequence, 6u);
  // In vain: as much once more, and no more.
  now += options.resend + std::chrono::seconds(4);
  link.on_frame({.session = 7, .received = 3}, now);
  now += Time(1);
  out = link.due(now);
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[0].header.sequence, 4u);
  // They arrive when they are about to go out a third time.
  link.resend_all();
  link.on_frame({.session = 7, .received = 7}, now);
  out = link.due(now);
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[0].header.sequence, 8u);
}

TEST(Link, GivesALargeMessageTheTimeThatItTakes) {
  LinkOptions options;
  options.resend = milliseconds(100);
  Link link(7, options, Time(0));
  const auto large = std::make_shared<const std::vector<std::byte>>(4 << 20);
  link.push(large);
  link.push(body_of(2));
  ASSERT_EQ(link.due(Time(0)).size(), 2u);
  const auto has_copies = [&](Time now, uint64_t arrived) {
    link.on_frame({.session = 7, .received = arrived}, now);
    return link.due(now).at(0).body != nullptr;
  };
  EXPECT_FALSE(has_copies(milliseconds(4000), 0)) << "1 MiB in a second";
  EXPECT_TRUE(has_copies(milliseconds(4200), 0));
  EXPECT_FALSE(has_copies(milliseconds(8000), 1));
  EXPECT_TRUE(has_copies(milliseconds(8200), 1)) << "the small one takes no time";
  link.push(large);
  ASSERT_EQ(link.due(milliseconds(9000)).size(), 1u);
  EXPECT_FALSE(has_copies(milliseconds(13'000), 1)) << "but goes out with the large one";
  EXPECT_TRUE(has_copies(milliseconds(13'500), 1));
}

TEST(Link, SendsOneThatIsLargerThanTheWindow) {
  Link link(7, LinkOptions{}, Time(0));
  const auto huge = std::make_shared<const std::vector<std::byte>>(kWindowBytes + 1);
  link.push(huge);
  link.push(huge);
  EXPECT_EQ(link.due(Time(1)).size(), 1u);
  link.on_frame({.session = 7, .received = 1}, Time(2));
  EXPECT_EQ(link.due(Time(3)).size(), 1u);
}

TEST(Link, SaysAtOnceThatMuchHasArrived) {
  Link link(7, LinkOptions{}, Time(0));
  ASSERT_EQ(link.on_frame({7, 1, 0}, Time(1), kWindowBytes / 8), Link::Verdict::kDeliver);
  EXPECT_TRUE(link.due(Time(2)).empty()) << "not of each";
  ASSERT_EQ(link.on_frame({7, 2, 0}, Time(3), kWindowBytes / 8), Link::Verdict::kDeliver);
  const auto out = link.due(Time(4));
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].header.received, 2u);
  EXPECT_EQ(out[0].header.ack, 0u) << "its owner has not taken it over";
  EXPECT_TRUE(link.due(Time(5)).empty());
}

TEST(Link, GivesTheUnacknowledgedToTheNextSession) {
  Link link(7, LinkOptions{}, Time(0));
  for (int i = 1; i <= 3; ++i) link.push(body_of(i));
  ASSERT_EQ(link.due(Time(1)).size(), 3u);
  link.on_frame({7, 0, 2}, Time(2));
  auto rest = link.release();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(number_in(rest[0]), 3);
}

TEST(Link, IgnoresAcknowledgementsOfWhatWasNeverSent) {
  Link link(7, LinkOptions{}, Time(0));
  link.push(body_of(1));
  link.on_frame({7, 0, 1}, Time(1));  // queued, but not sent
  EXPECT_FALSE(link.idle());
  ASSERT_EQ(link.due(Time(2)).size(), 1u);
  link.on_frame({7, 0, 900}, Time(3));
  EXPECT_FALSE(link.idle());
  link.on_frame({7, 0, 1}, Time(4));
  EXPECT_TRUE(link.idle());
}

TEST(Link, SkipsAMalformedMessageWithoutAcknowledgingThoseBeforeIt) {
  Link link(7, LinkOptions{}, Time(0));
  for (uint64_t i = 1; i <= 3; ++i)
    ASSERT_EQ(link.on_frame({7, i, 0}, Time(1)), Link::Verdict::kDeliver);
  link.skip(2);
  EXPECT_TRUE(link.due(Time(2)).empty());
  link.take_over(1);
  EXPECT_EQ(link.due(Time(3)).at(0).header.ack, 2u);
  link.skip(3);
  EXPECT_EQ(link.due(Time(4)).at(0).header.ack, 3u);
}

// A message in pieces is skipped with all of them, and with nothing before them.
TEST(Link, SkipsSeveralAsOne) {
  Link link(7, LinkOptions{}, Time(0));
  for (uint64_t i = 1; i <= 5; ++i)
    ASSERT_EQ(link.on_frame({7, i, 0}, Time(1)), Link::Verdict::kDeliver);
  link.skip(4, 3);
  EXPECT_EQ(link.counters().malformed, 1);
  EXPECT_TRUE(link.due(Time(2)).empty());
  link.take_over(1);
  EXPECT_EQ(link.due(Time(3)).at(0).header.ack, 4u);
  link.skip(5);
  EXPECT_EQ(link.due(Time(4)).at(0).header.ack, 5u);
}

TEST(Link, IsLostAfterItsTimeout) {
  Link link(7, LinkOptions{}, Time(0));
  EXPECT_FALSE(link.lost(milliseconds(5000)));
  EXPECT_TRUE(link.lost(milliseconds(5001)));
  link.on_frame({7, 0, 0}, milliseconds(5001));
  EXPECT_FALSE(link.lost(milliseconds(9000)));
}

}  // namespace
}  // namespace tailrace::wire
