#include "ports/open.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "ports/spec.h"

namespace sluice::ports {
namespace {

using testing::HasSubstr;

class OpenTest : public testing::Test {
 protected:
  OpenTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-open-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~OpenTest() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
};

std::string refusal(std::string_view spec) {
  const auto port = open_port(spec);
  return port ? std::string("it opened") : port.error().message;
}

TEST(PortSpec, HasKindAddressOptionsAndImpairment) {
  const auto spec = parse_port_spec("udp:10.0.0.2:7471,datagram=1400,impair(drop=1%,seed=7)").value();
  EXPECT_EQ(spec.kind, "udp");
  EXPECT_EQ(spec.address, "10.0.0.2:7471");
  ASSERT_EQ(spec.options.size(), 1u);
  EXPECT_EQ(spec.options[0].second, "1400");
  ASSERT_TRUE(spec.impairment);
  EXPECT_EQ(spec.impairment->tx.drop, 10'000u);
  EXPECT_EQ(spec.impairment->seed, 7u);
}

TEST(PortSpec, ReadsHostsNamesAndBracketedIpv6) {
  EXPECT_EQ(parse_host_port("rack-1:7471").value().host, "rack-1");
  EXPECT_EQ(parse_host_port("[fe80::1]:7471").value().host, "fe80::1");
  EXPECT_EQ(parse_host_port("[fe80::1]:7471").value().port, 7471);
  for (const char* text : {"host", "host:", "host:x", "host:70000", ":7471", "fe80::1:7471", ""}) {
    const auto wrong = parse_host_port(text);
    ASSERT_FALSE(wrong) << text;
    EXPECT_THAT(wrong.error().message, HasSubstr("HOST:PORT"));
  }
}

TEST_F(OpenTest, OpensBothEndsOfSharedMemoryAndUdp) {
  const auto path = directory_ + "/a.sock";
  auto listener = open_listener("shm:" + path + ",ring=262144").value();
  auto port = open_port("shm:" + path + ",impair(drop=1%)").value();
  EXPECT_THAT(port->name(), HasSubstr("impaired"));
  EXPECT_NE(listener->accept(Time()), nullptr);
  auto cable = open_port("cable:" + directory_ + "/b.sock").value();
  EXPECT_TRUE(open_port("shm:" + directory_ + "/b.sock"));
  auto udp = open_listener("udp:127.0.0.1:0,peers=4").value();
  EXPECT_TRUE(open_port(udp->name() + ",datagram=1400"));
}

TEST_F(OpenTest, WaitsForAnAbsentListenerOnlyWhenAskedTo) {
  const auto spec = "shm:" + directory_ + "/none.sock";
  EXPECT_THAT(refusal(spec), HasSubstr("start the listening side"));
  EXPECT_TRUE(open_port(spec, Absent::kWait));
}

TEST_F(OpenTest, SaysWhatIsWrongAndWhatIsAllowed) {
  EXPECT_THAT(refusal("eth0"), HasSubstr("KIND:ADDRESS"));
  EXPECT_THAT(refusal("shm:"), HasSubstr("nothing stands after shm:"));
  EXPECT_THAT(refusal("tcp:1.2.3.4:5"), HasSubstr("allowed are shm:/path"));
  EXPECT_THAT(refusal("udp:127.0.0.1:7471,mtu=1500"), HasSubstr("unknown option mtu=1500; allowed: record, datagram"));
  EXPECT_THAT(refusal("udp:127.0.0.1:7471,datagram=big"), HasSubstr("must be a whole number"));
  EXPECT_THAT(refusal("udp:127.0.0.1:7471,datagram"), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(refusal("udp:127.0.0.1:0"), HasSubstr("port 0"));
  EXPECT_THAT(refusal("udp:127.0.0.1:1,impair(drop=2)"), HasSubstr("drop must be a probability"));
  EXPECT_THAT(refusal("pcap:/no/such.pcap"), HasSubstr("cannot replay /no/such.pcap"));
  EXPECT_THAT(refusal("pcap:/x,pace=slow"), HasSubstr("pace must be fast or recorded"));
  EXPECT_THAT(refusal("cable:" + directory_ + "/c,record=/no/such/dir/x"), HasSubstr("cannot record"));
  EXPECT_THAT(refusal("packet:no-such-if"), HasSubstr("this machine has"));
  EXPECT_THAT(refusal("packet:lo,filter=tcp"), HasSubstr("filter must be roce or all"));
  EXPECT_THAT(open_listener("packet:eth0").error().message, HasSubstr("shm:/path, udp:HOST:PORT"));
  EXPECT_THAT(open_listener("shm:/x,impair(drop=1%)").error().message, HasSubstr("belongs to a port"));
  EXPECT_THAT(open_listener("shm:" + directory_ + "/r,ring=5").error().message, HasSubstr("power of two"));
}

}  // namespace
}  // namespace sluice::ports
