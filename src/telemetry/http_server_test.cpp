#include "telemetry/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <httplib.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <thread>

#include "telemetry/patient_server.h"
#include "telemetry/slow_guests.h"

namespace sluice::telemetry {
namespace {

using testing::HasSubstr;

class HttpServerTest : public testing::Test {
 protected:
  explicit HttpServerTest(const std::string& address = "127.0.0.1:0") {
    auto started = HttpServer::start({address}, [this](HttpServer& s) {
      s.serve("/hello", "text/plain", [] { return std::string("hello"); });
      s.take("/set", [this](const std::string& body) -> Result<std::string> {
        if (body == "no") return fail("never");
        taken_ = body;
        return "{}";
      });
      s.stream("/ticks", Duration::milliseconds(30), [this](const auto&) { return std::to_string(++ticks_); });
      s.pour("/pour", "text/plain", [this](const std::string& body) -> Result<HttpServer::Source> {
        if (body == "no") return fail("never");
        return HttpServer::Source([this]() -> std::string {
          if (++poured_ % 2 == 0) return "";  // nothing yet
          return std::string(100'000, 'x');
        });
      });
      s.admit_changes([this](const httplib::Request& request) -> Result<void> {
        if (request.path == "/pour" && !is_admitted_) return fail("not any more");
        return {};
      });
      s.admit([this](const httplib::Request& request) -> Result<void> {
        if (request.path == "/ticks" && !is_admitted_) return fail("not any more");
        return {};
      });
      s.hurry("/urgent");
      s.take("/urgent", [](const std::string&) -> Result<std::string> { return "{}"; });
      s.serve("/much", "text/plain", [] { return std::string(std::size_t{6} << 20, 'x'); });
      s.stream("/broken", Duration::milliseconds(30),
               [](const auto&) -> std::string { throw std::runtime_error("no"); });
    });
    if (started)
      server_ = std::move(*started);
    else
      why_not_ = started.error().message;
  }
  void SetUp() override { ASSERT_NE(server_, nullptr) << why_not_; }
  int port() const { return HttpAddress{server_->address()}.host_and_port().second; }
  httplib::Client client() const { return httplib::Client("127.0.0.1", port()); }
  httplib::Result post(const httplib::Headers& headers, const std::string& body, const char* type = kJson) const {
    return client().Post("/set", headers, body, type);
  }
  // A socket on its way to the server, or there unless SOCK_NONBLOCK is among `flags`.
  int connected(int flags = 0) const { return connected_from("127.0.0.1", flags); }
  int connected_from(const std::string& from, int flags = 0) const {
    const int s = socket(AF_INET, SOCK_STREAM | flags, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from.c_str(), &address.sin_addr);
    EXPECT_EQ(bind(s, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    address.sin_port = htons(static_cast<std::uint16_t>(port()));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    const int result = connect(s, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    EXPECT_TRUE(result == 0 || flags != 0);
    return s;
  }
  static bool say(int s, std::string_view what) {
    return send(s, what.data(), what.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(what.size());
  }
  // What comes back for these bytes, until the server closes.
  std::string exchange(const std::string& bytes) const {
    const int s = connected();
    for (std::size_t sent = 0; sent < bytes.size();) {  // the server need not take all
      const ssize_t n = send(s, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<std::size_t>(n);
    }
    return answer_of(s);
  }
  // Until the server closes.
  static std::string answer_of(int s) {
    std::string back;
    std::array<char, 512> piece{};
    for (ssize_t n = 0; (n = recv(s, piece.data(), piece.size(), 0)) > 0;)
      back.append(piece.data(), static_cast<std::size_t>(n));
    close(s);
    return back;
  }

  std::atomic<int> ticks_{0};
  std::atomic<int> poured_{0};
  std::atomic<bool> is_admitted_{true};
  std::string taken_;
  std::unique_ptr<HttpServer> server_;
  std::string why_not_;  // is there none
};

TEST_F(HttpServerTest, TellsWhichPortTheSystemChoseAndServes) {
  EXPECT_NE(server_->address(), "127.0.0.1:0");
  const auto answer = client().Get("/hello");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "hello");
  EXPECT_EQ(answer->get_header_value("Cache-Control"), "no-store");
}

TEST_F(HttpServerTest, APortThatIsTakenIsAnErrorThatSaysWhich) {
  const auto second = HttpServer::start({server_->address()}, [](HttpServer&) {});
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr(server_->address()));
}

TEST(HttpServer, APortThatIsNoneIsNotTakenForAnother) {
  for (const char* const wrong :
       {"127.0.0.1:http", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1:80x", "[::1]:x"}) {
    const auto server = HttpServer::start({wrong}, [](HttpServer&) {});
    ASSERT_FALSE(server) << wrong;
    EXPECT_THAT(server.error().message, HasSubstr("a port from 0 to 65535")) << wrong;
  }
}

TEST(HttpServer, AnAddressThatCannotBeListenedAtIsToldFromAPortThatIsTaken) {
  const auto nowhere = HttpServer::start({"999.1.1.1:0"}, [](HttpServer&) {});
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().message, HasSubstr("'999.1.1.1' is no address"));
  const auto elsewhere = HttpServer::start({"192.0.2.1:17499"}, [](HttpServer&) {});  // of RFC 5737: nobody's
  ASSERT_FALSE(elsewhere);
  EXPECT_THAT(elsewhere.error().message, HasSubstr("does not have that address"));
}

TEST(HttpServer, APortThatIsForRootIsToldFromAPortThatIsTaken) {
  const uid_t root = geteuid();
  if (root == 0) {
    ASSERT_EQ(seteuid(65534), 0);
  }
  const auto server = HttpServer::start({"127.0.0.1:1"}, [](HttpServer&) {});
  ASSERT_EQ(seteuid(root), 0);
  if (server) GTEST_SKIP() << "here such ports are everybody's";
  EXPECT_THAT(server.error().message, HasSubstr("Permission denied; ports below 1024 need root"));
}

TEST(HttpServer, AnIpv6AddressStandsInBrackets) {
  const auto server = HttpServer::start(
      {"[::1]:0"}, [](HttpServer& s) { s.serve("/hello", "text/plain", [] { return std::string("hello"); }); });
  if (!server) GTEST_SKIP() << "no IPv6 here: " << server.error().message;
  EXPECT_THAT((*server)->address(), testing::StartsWith("[::1]:"));
  const auto [host, port] = HttpAddress{(*server)->address()}.host_and_port();
  EXPECT_EQ(host, "::1");
  for (const std::string& name : {std::string(), "[::1]:" + std::to_string(port)}) {
    const auto answer =
        httplib::Client(host, port).Get("/hello", name.empty() ? httplib::Headers() : httplib::Headers{{"Host", name}});
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->body, "hello") << name;
  }
}

TEST_F(HttpServerTest, ErrorsAreJsonWithWords) {
  const auto answer = client().Get("/nothing");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 404);
  EXPECT_EQ(answer->body, R"({"error":"GET /nothing: there is nothing at this path"})");
  const auto refused = post({}, "no");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 409);
  EXPECT_EQ(refused->body, R"({"error":"never"})");
}

TEST_F(HttpServerTest, WhatIsNoUtf8IsAnsweredLikeAllElse) {
  const auto answer = client().Get("/%ff");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 404);
  EXPECT_EQ(answer->body, "{\"error\":\"GET /\xEF\xBF\xBD: there is nothing at this path\"}");
  EXPECT_EQ(exchange("G\xff /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").substr(0, 12), "HTTP/1.1 400");
  EXPECT_EQ(client().Get("/hello", {{"Host", "\xff.example"}})->status, 403);
  EXPECT_EQ(client().Get("/hello")->status, 200);
}

TEST_F(HttpServerTest, AStreamWhoseBodyFailsEndsAlone) {
  const auto answer = client().Get("/broken");
  EXPECT_FALSE(answer && !answer->body.empty());
  EXPECT_EQ(client().Get("/hello")->status, 200);
}

TEST_F(HttpServerTest, TakesJsonFromProgramsAndFromItsOwnPages) {
  EXPECT_EQ(post({}, "1")->status, 200);
  EXPECT_EQ(post({{"Origin", "http://" + server_->address()}}, "2")->status, 200);
  EXPECT_EQ(taken_, "2");
}

TEST_F(HttpServerTest, ForeignPagesChangeNothing) {
  EXPECT_EQ(post({{"Origin", "http://elsewhere.example"}}, "1")->status, 403);
  // What a form can send without asking first.
  EXPECT_EQ(post({}, "1", "text/plain")->status, 415);
  EXPECT_EQ(taken_, "");
}

TEST_F(HttpServerTest, NothingThatIsServedMayBeFramedByAnotherPage) {
  for (const char* const path : {"/hello", "/nothing"}) {
    const auto got = client().Get(path);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->get_header_value("X-Frame-Options"), "DENY") << path;
    EXPECT_THAT(got->get_header_value("Content-Security-Policy"), HasSubstr("; frame-ancestors 'none'")) << path;
  }
}

TEST_F(HttpServerTest, NothingThatIsServedLoadsFromElsewhereOrIsLoadedThere) {
  for (const char* const path : {"/hello", "/nothing"}) {
    const auto got = client().Get(path);
    ASSERT_TRUE(got);
    const std::string policy = got->get_header_value("Content-Security-Policy");
    EXPECT_THAT(policy, testing::StartsWith("default-src 'none'; script-src 'self'; connect-src 'self'; ")) << path;
    EXPECT_EQ(got->get_header_value("X-Content-Type-Options"), "nosniff") << path;
    EXPECT_EQ(got->get_header_value("Cross-Origin-Resource-Policy"), "same-origin") << path;
  }
}

TEST_F(HttpServerTest, ANameThatWasPointedHereIsNotOurs) {
  const auto answer = client().Get("/hello", {{"Host", "elsewhere.example:80"}});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 403);
  EXPECT_EQ(client().Get("/hello", {{"Host", "localhost:1234"}})->status, 200);
}

// Of one that asks for it a thousand times over, too.
TEST_F(HttpServerTest, AnAnswerIsGivenWhole) {
  std::string ranges = "bytes=0-";
  for (int i = 0; i < 1000; ++i) ranges += ",0-";
  for (const std::string& asked : {std::string("bytes=1-2"), ranges}) {
    const std::string answer = exchange("GET /hello HTTP/1.1\r\nHost: 127.0.0.1\r\nRange: " + asked + "\r\n\r\n");
    EXPECT_THAT(answer, testing::StartsWith("HTTP/1.1 200 OK"));
    EXPECT_THAT(answer, testing::EndsWith("\r\n\r\nhello"));
  }
}

TEST_F(HttpServerTest, ABodyThatIsTooLongIsRefused) {
  const auto answer = post({}, std::string(HttpServer::kMaxBody + 1, 'x'));
  // Refused before all of it was read: some see the answer, some a connection that ended.
  if (answer) {
    EXPECT_EQ(answer->status, 413);
  }
  EXPECT_EQ(taken_, "");
  EXPECT_EQ(client().Get("/hello")->status, 200);
}

TEST_F(HttpServerTest, ABodyThatDoesNotSayHowLongItIsIsRefusedToo) {
  const std::string head = "POST /set HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n";
  const std::string much(4 * HttpServer::kMaxBody, 'x');
  for (const std::string& request :
       {head + "\r\n" + much, head + "Transfer-Encoding: chunked\r\n\r\n400000\r\n" + much + "\r\n0\r\n\r\n",
        head + "Transfer-Encoding: chunked\r\n\r\n100001\r\n" + much.substr(0, HttpServer::kMaxBody + 1) +
            "\r\n0\r\n\r\n"}) {
    EXPECT_THAT(exchange(request), testing::Not(HasSubstr("200 OK"))) << request.substr(head.size(), 40);
    EXPECT_EQ(taken_, "");
  }
  std::string headers = head;
  for (int i = 0; i < 100'000; ++i) headers += "X-" + std::to_string(i) + ": 0123456789012345678901234567890\r\n";
  EXPECT_THAT(exchange(headers + "Content-Length: 2\r\n\r\n{}"), testing::Not(HasSubstr("200 OK")));
  const auto packed = post({{"Content-Encoding", "gzip"}}, "{}");
  ASSERT_TRUE(packed);
  EXPECT_EQ(packed->status, 415);
  EXPECT_EQ(taken_, "");
  EXPECT_THAT(exchange(head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"), HasSubstr("200 OK"));
  EXPECT_EQ(taken_, "{}");
}

TEST_F(HttpServerTest, ABodyThatIsNestedTooDeeplyIsRefused) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(post({}, nested(HttpServer::kMaxNesting))->status, 200);
  taken_.clear();
  const auto answer = post({}, nested(500'000));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 400);
  EXPECT_THAT(answer->body, HasSubstr("more than 64 arrays and objects in each other"));
  EXPECT_EQ(taken_, "");
  EXPECT_EQ(post({}, R"({"text": "\"[)" + std::string(100, '[') + R"("})")->status, 200) << "none within strings";
}

TEST_F(HttpServerTest, ABodyOfTooManyValuesIsRefused) {
  const auto values = [](int many) {
    std::string body = "[0";
    for (int i = 1; i < many; ++i) body += ",0";
    return body + "]";
  };
  EXPECT_EQ(post({}, values(HttpServer::kMaxValues))->status, 200);
  EXPECT_EQ(post({}, values(HttpServer::kMaxValues + 1))->status, 400);
  EXPECT_EQ(post({}, R"([")" + std::string(2 * HttpServer::kMaxValues, ',') + R"("])")->status, 200);
}

TEST_F(HttpServerTest, StreamsEventsUntilTheReaderGoes) {
  std::string seen;
  const auto answer = client().Get("/ticks", [&](const char* data, std::size_t size) {
    seen.append(data, size);
    return seen.find("data: 3\n\n") == std::string::npos;
  });
  EXPECT_THAT(seen, HasSubstr("data: 1\n\ndata: 2\n\ndata: 3\n\n"));
  EXPECT_EQ(answer.error(), httplib::Error::Canceled);
}

TEST_F(HttpServerTest, StreamsNoMoreToWhomIsNotAdmittedAnyMore) {
  bool begun = false;
  const auto answer = client().Get("/ticks", [&](const char*, std::size_t) {
    if (!std::exchange(begun, true)) is_admitted_ = false;
    return true;
  });
  EXPECT_TRUE(begun);
  EXPECT_EQ(client().Get("/ticks")->status, 403);
}

TEST_F(HttpServerTest, MoreStreamsThanThereIsRoomForAreToldSoAndTheRestIsServed) {
  std::vector<std::thread> readers;
  std::atomic<int> reading{0};
  std::atomic<bool> enough{false};
  for (int i = 0; i < HttpServer::kMaxStreams; ++i) {
    readers.emplace_back([&] {
      bool first = true;
      client().Get("/ticks", [&](const char*, std::size_t) {
        if (std::exchange(first, false)) ++reading;
        return !enough;
      });
    });
  }
  while (reading < HttpServer::kMaxStreams) std::this_thread::yield();
  const auto one_more = client().Get("/ticks");
  ASSERT_TRUE(one_more);
  EXPECT_EQ(one_more->status, 503);
  EXPECT_EQ(client().Get("/hello")->status, 200);
  enough = true;
  for (std::thread& reader : readers) reader.join();
}

// A POST to /pour whose answer goes to `take`.
httplib::Result pour(httplib::Client client, const std::string& body,
                     const std::function<bool(const char*, std::size_t)>& take) {
  httplib::Request request;
  request.method = "POST";
  request.path = "/pour";
  request.headers = {{"Content-Type", kJson}};
  request.body = body;
  request.content_receiver = [&](const char* bytes, std::size_t size, std::uint64_t, std::uint64_t) {
    return take(bytes, size);
  };
  return client.send(request);
}

TEST_F(HttpServerTest, PoursUntilTheReaderGoes) {
  std::size_t seen = 0;
  const auto answer = pour(client(), "yes", [&](const char* bytes, std::size_t size) {
    EXPECT_EQ(std::string(bytes, size), std::string(size, 'x'));
    seen += size;
    return seen < 1'000'000;
  });
  EXPECT_GE(seen, 1'000'000);
  EXPECT_EQ(answer.error(), httplib::Error::Canceled);
  const auto refused = pour(client(), "no", [](const char*, std::size_t) { return true; });
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 409);
}

TEST_F(HttpServerTest, PoursNoMoreForWhomIsNotAdmittedAnyMore) {
  bool begun = false;
  const auto answer = pour(client(), "yes", [&](const char*, std::size_t) {
    if (!std::exchange(begun, true)) is_admitted_ = false;
    return true;
  });
  EXPECT_TRUE(begun);
  EXPECT_FALSE(answer);
  EXPECT_EQ(pour(client(), "yes", [](const char*, std::size_t) { return true; })->status, 403);
  EXPECT_EQ(client().Get("/hello")->status, 200);
}

// Whoever takes nothing is waited for, holds up nobody else, and not the end either.
TEST_F(HttpServerTest, EndsThoughAReaderOfAPourTakesNothing) {
  std::vector<int> readers;
  for (int i = 0; i < HttpServer::kMaxPours; ++i) {
    readers.push_back(connected());
    const std::string request =
        "POST /pour HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\nyes";
    ASSERT_EQ(send(readers.back(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    char first = 0;
    ASSERT_EQ(recv(readers.back(), &first, 1, 0), 1);
  }
  const auto one_more = pour(client(), "yes", [](const char*, std::size_t) { return true; });
  ASSERT_TRUE(one_more);
  EXPECT_EQ(one_more->status, 503);
  EXPECT_EQ(client().Get("/hello")->status, 200);
  const auto before = std::chrono::steady_clock::now();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - before, PatientServer::kWriting);
  for (const int reader : readers) close(reader);
}

TEST_F(HttpServerTest, ThoseWhoConnectAndSayNothingKeepNobodyOut) {
  std::vector<int> idle;
  for (int i = 0; i < 400; ++i) {
    idle.push_back(connected(SOCK_NONBLOCK));
    ASSERT_GE(idle.back(), 0);
  }
  httplib::Client asking = client();
  asking.set_connection_timeout(60);
  asking.set_read_timeout(60);
  const auto answer = asking.Get("/hello");
  ASSERT_TRUE(answer) << httplib::to_string(answer.error());
  EXPECT_EQ(answer->body, "hello");
  for (const int s : idle) close(s);
}

struct Slow {
  const char* name;
  const char* listens;
  std::string says;
};

class HttpServerSlowTest : public HttpServerTest, public testing::WithParamInterface<Slow> {
 protected:
  HttpServerSlowTest() : HttpServerTest(GetParam().listens) {}
  void SetUp() override {
    if (!server_ && GetParam().listens[0] == '[') GTEST_SKIP() << "no IPv6 here: " << why_not_;
    HttpServerTest::SetUp();
  }
};

TEST_P(HttpServerSlowTest, ThoseWhoAreSlowToAskKeepNobodyOut) {
  const SlowGuests many(250, "127.0.0.1", port(), GetParam().says, "127.0.0.2");
  ASSERT_TRUE(many.come());
  for (int i = 0; i < 5; ++i) {
    httplib::Client asking = client();
    asking.set_read_timeout(2);
    const auto answer = asking.Get("/hello");
    ASSERT_TRUE(answer) << httplib::to_string(answer.error());
    EXPECT_EQ(answer->body, "hello");
  }
  // Nor one who is a little slow himself, and comes from elsewhere.
  const int s = connected();
  ASSERT_TRUE(say(s, "GET /hello HTTP/1.1\r\n"));
  ASSERT_TRUE(many.come(many.rounds() + 3));
  EXPECT_TRUE(say(s, "Host: localhost\r\n\r\n"));
  EXPECT_THAT(answer_of(s), testing::StartsWith("HTTP/1.1 200"));
}

std::vector<Slow> all_slow() {
  const std::string head = "POST /set HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  return {{"Head", "127.0.0.1:0", "G"},
          {"HeadToADualStack", "[::]:0", "G"},
          {"Body", "127.0.0.1:0", head + "content-length: 10\r\n\r\n"},
          {"RestOfABody", "127.0.0.1:0", head + "Content-Length: 10\r\n\r\n[12345678"},
          {"BodyThatIsTooLong", "127.0.0.1:0", head + "Content-Length: 99999999999\r\n\r\n"},
          {"BodyWithoutALength", "127.0.0.1:0", head + "\r\n"},
          {"BodyInChunks", "127.0.0.1:0", head + "Transfer-Encoding: chunked\r\n\r\n"},
          {"BodyThatIsAskedFor", "127.0.0.1:0", head + "Content-Length: 10\r\nExpect: 100-continue\r\n\r\n"}};
}

INSTANTIATE_TEST_SUITE_P(All, HttpServerSlowTest, testing::ValuesIn(all_slow()),
                         [](const auto& i) { return i.param.name; });

TEST_F(HttpServerTest, SlowGuestsWhoCannotComeAreNotThere) {
  const SlowGuests from_nowhere(3, "127.0.0.1", port(), "G", "192.0.2.1");  // of RFC 5737: nobody's
  EXPECT_FALSE(from_nowhere.come(1, std::chrono::milliseconds(100)));
  const SlowGuests to_nobody(3, "127.0.0.1", 1, "G", "127.0.0.2");
  EXPECT_FALSE(to_nobody.come(1, std::chrono::milliseconds(100)));
}

TEST_F(HttpServerTest, WhoSendsMuchAndNotAllOfItEndsHisOwn) {
  const std::string most = "POST /set HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n" +
                           std::string(HttpServer::kMaxBody - 1, ' ');
  const auto began = std::chrono::steady_clock::now();
  const int patient = connected();
  ASSERT_TRUE(say(patient, "GET /hello HTTP/1.1\r\n"));
  std::vector<int> many;
  const auto has_ended = [](int s) {
    char first = 0;
    const ssize_t got = recv(s, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
  };
  do {  // no more of them than it takes: a slow machine has what follows to do in time, too
    many.push_back(connected_from("127.0.0.2"));
    say(many.back(), most);  // unless it has been ended already
  } while (many.size() < 40 && !has_ended(many.front()));
  EXPECT_EQ(answer_of(many.front()), "");
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(4)) << "not for being slow";
  EXPECT_TRUE(say(patient, "Host: localhost\r\n\r\n"));
  EXPECT_THAT(answer_of(patient), testing::StartsWith("HTTP/1.1 200"));
  for (std::size_t i = 1; i < many.size(); ++i) close(many[i]);
}

// As many as hold all threads that one address may have, and more.
TEST_F(HttpServerTest, WhoTakesNoAnswersHoldsUpNeitherOthersNorWhatIsUrgent) {
  std::vector<int> takers;
  for (std::size_t i = 0; i < HttpServer::kThreads; ++i) {
    takers.push_back(connected_from("127.0.0.2"));
    ASSERT_TRUE(say(takers.back(), "GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  }
  for (std::size_t i = 0; i < HttpServer::kThreads / 2; ++i) {
    char first = 0;
    ASSERT_EQ(recv(takers[i], &first, 1, 0), 1);
  }
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(client().Get("/hello")->body, "hello");
  const int urgent = connected_from("127.0.0.2");
  ASSERT_TRUE(
      say(urgent,
          "POST /urgent HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"));
  EXPECT_THAT(answer_of(urgent), testing::StartsWith("HTTP/1.1 200"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, PatientServer::kWriting);
  // Whoever of them is in line has his turn when others are over.
  for (std::size_t i = 0; i < HttpServer::kThreads / 2; ++i) close(takers[i]);
  for (std::size_t i = HttpServer::kThreads / 2; i < takers.size(); ++i) {
    char first = 0;
    EXPECT_EQ(recv(takers[i], &first, 1, 0), 1);
    close(takers[i]);
  }
}

TEST_F(HttpServerTest, ABodyThatIsAskedForComesThen) {
  const int s = connected();
  ASSERT_TRUE(say(s,
                  "POST /set HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
                  "Expect: 100-continue\r\n\r\n"));
  std::array<char, 25> asked{};
  ASSERT_EQ(recv(s, asked.data(), asked.size(), MSG_WAITALL), static_cast<ssize_t>(asked.size()));
  EXPECT_EQ(std::string_view(asked.data(), asked.size()), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(say(s, "{}"));
  EXPECT_THAT(answer_of(s), testing::StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(taken_, "{}");
}

TEST_F(HttpServerTest, ARequestThatComesInPiecesIsOne) {
  const int s = connected();
  const int yes = 1;
  setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  const std::string request =
      "POST /set HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n[123456789";
  for (const char c : request) ASSERT_EQ(send(s, &c, 1, MSG_NOSIGNAL), 1);
  std::array<char, 512> answer{};
  ASSERT_GT(recv(s, answer.data(), answer.size(), 0), 0);
  EXPECT_THAT(answer.data(), testing::StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(taken_, "[123456789");
  close(s);
}

TEST_F(HttpServerTest, EndsThoughSomebodyReadsAStream) {
  std::atomic<bool> reading{false};
  std::thread reader([&] {
    client().Get("/ticks", [&](const char*, std::size_t) {
      reading = true;
      return true;
    });
  });
  while (!reading) std::this_thread::yield();
  server_.reset();
  reader.join();
}

// As where the whole machine has no file descriptor left, for a moment.
class PoorServer final : public PatientServer {
 public:
  using PatientServer::PatientServer;

 private:
  int accept_one(int listening) override {
    const int socket = PatientServer::accept_one(listening);
    if (socket < 0 || failed_++ >= 3) return socket;
    close(socket);
    errno = ENFILE;
    return -1;
  }
  int failed_ = 0;
};

TEST(PatientServer, ServesOnWhereTheKernelHadNoRoomForOneWhoCame) {
  PoorServer server(4);
  server.Get("/word",
             [](const httplib::Request&, httplib::Response& response) { response.set_content("hello", "text/plain"); });
  const int port = server.bind_to_any_port("127.0.0.1");
  std::thread serving([&] { server.serve(); });
  int answered = 0;
  for (int i = 0; i < 5; ++i) answered += httplib::Client("127.0.0.1", port).Get("/word") ? 1 : 0;
  EXPECT_EQ(answered, 2);
  server.end();
  serving.join();
}

class UnixHttpServerTest : public testing::Test {
 protected:
  UnixHttpServerTest() { EXPECT_NE(mkdtemp(folder_.data()), nullptr); }
  ~UnixHttpServerTest() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ + "/a.sock"; }
  // That answers with this word.
  std::unique_ptr<HttpServer> serve(const std::string& word) const {
    auto server =
        HttpServer::start({path()}, [word](HttpServer& s) { s.serve("/word", "text/plain", [word] { return word; }); });
    EXPECT_TRUE(server) << server.error().message;
    return server ? std::move(*server) : nullptr;
  }
  // Empty: nobody answers.
  std::string ask() const {
    httplib::Client client(path(), 80);
    client.set_address_family(AF_UNIX);
    const auto answer = client.Get("/word");
    return answer ? answer->body : "";
  }

 private:
  std::string folder_ = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
};

TEST_F(UnixHttpServerTest, ItsSocketIsOursAloneAndGoesWithIt) {
  auto server = serve("hello");
  struct stat status {};
  ASSERT_EQ(stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0077, 0u);
  EXPECT_EQ(ask(), "hello");
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(path()));
}

// As a daemon does that was stopped for longer than its lease, and finds when it goes on that another has its name.
TEST_F(UnixHttpServerTest, WhoseSocketWasReplacedLeavesThatOfItsSuccessor) {
  auto first = serve("first");
  const auto second = serve("second");
  first.reset();
  EXPECT_EQ(ask(), "second");
}

}  // namespace
}  // namespace sluice::telemetry
