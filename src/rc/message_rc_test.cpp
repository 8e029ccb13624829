#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rc/remote_rc.h"
#include "rc/two_adapters.h"

namespace sluice::rc {
namespace {

using remote::kMaxMessage;
using remote::MessageResult;
using remote::Status;
using remote::Task;

// Answers with the request, reversed.
class Reverser : public remote::MessageService {
 public:
  std::size_t handle(Time, ByteView request, MutableBytes response) override {
    ++calls;
    std::ranges::reverse_copy(request, response.begin());
    return request.size();
  }
  int calls = 0;
};

class MessagesTest : public testing::Test {
 protected:
  explicit MessagesTest(const port::ImpairmentSpec* impairment = nullptr) : world(impairment) {
    options.depth = 16;
    options.retry_count = 3;
    server.emplace(*world.b.adapter, service, *world.b.completions);
    pair = world.connect(options);
    server->add(*pair.b);
    client.emplace(scheduler, *world.a.adapter, *pair.a, *world.a.completions);
  }

  void run() {
    for (int idle = 0; idle < 3;) {
      std::size_t moved = scheduler.run(world.now);
      if (world.round()) ++moved;
      moved += client->poll(world.now) + server->poll(world.now);
      idle = moved == 0 ? idle + 1 : 0;
    }
  }
  Task<void> ask(std::string question, MessageResult& result, std::string& answer, std::size_t room = kMaxMessage) {
    std::vector<std::uint8_t> request(question.begin(), question.end());
    std::vector<std::uint8_t> response(room);
    result = co_await client->call(request, response);
    answer.assign(response.begin(), response.begin() + static_cast<std::ptrdiff_t>(result.length));
  }

  TwoAdapters world;
  PairOptions options;
  Reverser service;
  remote::Scheduler scheduler;
  TwoAdapters::Pair pair;
  std::optional<MessageServerRc> server;
  std::optional<MessageClientRc> client;
};

TEST_F(MessagesTest, AnswersMessagesOfEveryLength) {
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{1024}, std::size_t{1025}, kMaxMessage}) {
    std::string question(length, 'x');
    if (length > 0) question.front() = 'a';
    MessageResult result;
    std::string answer;
    scheduler.spawn(ask(question, result, answer));
    run();
    EXPECT_EQ(result.status, Status::kOk);
    EXPECT_EQ(answer, std::string(question.rbegin(), question.rend()));
  }
}

TEST_F(MessagesTest, GivesEachOfManyCallersItsOwnAnswer) {
  constexpr std::size_t kCallers = 500;
  std::vector<MessageResult> results(kCallers);
  std::vector<std::string> answers(kCallers);
  for (std::size_t i = 0; i < kCallers; ++i) scheduler.spawn(ask(std::to_string(100'000 + i), results[i], answers[i]));
  run();
  for (std::size_t i = 0; i < kCallers; ++i) {
    const std::string question = std::to_string(100'000 + i);
    EXPECT_EQ(answers[i], std::string(question.rbegin(), question.rend()));
  }
  EXPECT_EQ(world.b.adapter->counters().tx_rnr_naks, 0u) << "the server always has a buffer for whom it has answered";
}

TEST_F(MessagesTest, RefusesWhatIsTooLong) {
  MessageResult result;
  std::string answer;
  scheduler.spawn(ask(std::string(kMaxMessage + 1, 'x'), result, answer));
  run();
  EXPECT_EQ(result.status, Status::kTooLong);
  EXPECT_EQ(service.calls, 0);
  scheduler.spawn(ask("longer than its room", result, answer, 5));
  run();
  EXPECT_EQ(result.status, Status::kTooLong);
  scheduler.spawn(ask("goes on", result, answer));
  run();
  EXPECT_EQ(answer, "no seog");
}

TEST_F(MessagesTest, SaysWhatItKnowsOfCallsWhoseServerIsGone) {
  world.b.adapter->modify(world.now, *pair.b, {.state = QpState::kError});
  std::vector<MessageResult> results(20);
  std::vector<std::string> answers(20);
  for (std::size_t i = 0; i < 20; ++i) scheduler.spawn(ask("anyone?", results[i], answers[i]));
  run();
  EXPECT_EQ(scheduler.live(), 0u);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(results[i].status, Status::kUnknown) << i;
  for (std::size_t i = 16; i < 20; ++i) EXPECT_EQ(results[i].status, Status::kUnreachable) << i;
  EXPECT_TRUE(client->failed());
  scheduler.spawn(ask("still nobody?", results[0], answers[0]));
  run();
  EXPECT_EQ(results[0].status, Status::kUnreachable);
}

TEST_F(MessagesTest, ServesTheOthersWhenOneClientIsRemoved) {
  CompletionQueue* completions = world.a.adapter->create_completion_queue(64);
  auto* const first_completions = std::exchange(world.a.completions, completions);
  const auto second = world.connect(options);
  world.a.completions = first_completions;
  server->add(*second.b);
  MessageClientRc other(scheduler, *world.a.adapter, *second.a, *completions);
  world.b.adapter->modify(world.now, *pair.b, {.state = QpState::kReset});
  server->remove(*pair.b);

  std::vector<std::uint8_t> request = {1, 2, 3};
  std::vector<std::uint8_t> response(8);
  remote::Call call{.request = request, .response = response};
  bool done = false;
  call.context = &done;
  call.on_complete = [](remote::Call& c) { *static_cast<bool*>(c.context) = true; };
  other.submit(call);
  for (int i = 0; i < 1000 && !done; ++i) {
    world.round();
    server->poll(world.now);
    other.poll(world.now);
  }
  EXPECT_TRUE(done);
  EXPECT_EQ(call.result.length, 3u);
  EXPECT_EQ(response[0], 3);
}

TEST_F(MessagesTest, TakesNoWriteThatNotifiesForAnAnswerThatHasArrived) {
  constexpr std::uint8_t kRequests = 17;  // one more than the server has buffers for answers
  CompletionQueue* const completions = world.a.adapter->create_completion_queue(128);
  auto* const first_completions = std::exchange(world.a.completions, completions);
  options.depth = 64;
  const auto peer = world.connect(options);
  world.a.completions = first_completions;
  server->add(*peer.b);
  const auto post = [&](SendOp op, std::span<const Sge> sges) {
    EXPECT_EQ(world.a.adapter->post_send(world.now, *peer.a, {.op = op, .flags = {.signaled = false}, .sges = sges}),
              PostError::kNone);
  };
  const auto run_server = [&] {
    for (int i = 0; i < 1000; ++i) {
      world.round();
      server->poll(world.now);
    }
  };
  post(SendOp::kWriteWithImmediate, {});
  std::vector<std::vector<std::uint8_t>> requests;
  for (std::uint8_t i = 0; i < kRequests; ++i) requests.push_back({i, 1, 2});
  for (const auto& request : requests) {
    const Sge sge = Sge::of(request);
    post(SendOp::kSend, {&sge, 1});
  }
  run_server();  // the peer takes no answer yet
  EXPECT_EQ(service.calls, kRequests - 1);
  std::vector<std::vector<std::uint8_t>> answers(kRequests, std::vector<std::uint8_t>(3));
  for (std::uint8_t i = 0; i < kRequests; ++i) {
    const Sge sge = Sge::of(answers[i]);
    ASSERT_EQ(world.a.adapter->post_receive(*peer.a, {.id = i, .sges = {&sge, 1}}), PostError::kNone);
  }
  run_server();
  for (std::uint8_t i = 0; i < kRequests; ++i) EXPECT_THAT(answers[i], testing::ElementsAre(2, 1, i));
}

TEST_F(MessagesTest, EndsWithAServerThatWritesAndNotifies) {
  ASSERT_EQ(
      world.b.adapter->post_send(world.now, *pair.b, {.op = SendOp::kWriteWithImmediate, .flags = {.signaled = false}}),
      PostError::kNone);
  run();
  EXPECT_TRUE(client->failed());
}

struct LossyMessagesTest : MessagesTest {
  static const port::ImpairmentSpec& spec() {
    static const port::ImpairmentSpec s = [] {
      port::ImpairmentSpec made;
      made.tx.drop = made.rx.drop = 50'000;
      made.tx.duplicate = made.rx.duplicate = 50'000;
      made.tx.reorder = made.rx.reorder = 50'000;
      made.seed = 5;
      return made;
    }();
    return s;
  }
  LossyMessagesTest() : MessagesTest(&spec()) {}
};

TEST_F(LossyMessagesTest, HandlesEachRequestOnceThroughLossAndDuplication) {
  constexpr std::size_t kCallers = 2000;
  std::vector<MessageResult> results(kCallers);
  std::vector<std::string> answers(kCallers);
  for (std::size_t i = 0; i < kCallers; ++i) scheduler.spawn(ask(std::to_string(100'000 + i), results[i], answers[i]));
  run();
  for (std::size_t i = 0; i < kCallers; ++i) {
    ASSERT_EQ(results[i].status, Status::kOk) << i;
    const std::string question = std::to_string(100'000 + i);
    EXPECT_EQ(answers[i], std::string(question.rbegin(), question.rend()));
  }
  EXPECT_EQ(service.calls, static_cast<int>(kCallers));
}

}  // namespace
}  // namespace sluice::rc
