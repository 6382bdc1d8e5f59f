#include "tests/hosts/network_device.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "tests/hosts/system_failure.h"

namespace tailrace {
namespace {

// Packets that wait for the emulator, which reads late at times. A shorter queue would drop
// packets that no counter of the link has.
constexpr int kDeviceQueue = 20'000;

FileDescriptor open_control(int domain, int type) {
  FileDescriptor socket(::socket(domain, type | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) fail_with(errno, "cannot open", "a socket");
  return socket;
}

void control(const FileDescriptor& descriptor, unsigned long request, ifreq& argument,
             const char* action) {
  if (::ioctl(descriptor.get(), request, &argument) < 0)
    fail_with(errno, action, argument.ifr_name);
}

void set_up(const FileDescriptor& socket, ifreq request) {
  control(socket, SIOCGIFFLAGS, request, "cannot read the flags of");
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  control(socket, SIOCSIFFLAGS, request, "cannot set up");
}

in_addr parse(const std::string& address) {
  in_addr result{};
  if (::inet_pton(AF_INET, address.c_str(), &result) != 1) fail_with(EINVAL, "cannot use", address);
  return result;
}

void set_address(ifreq& request, const std::string& address) {
  sockaddr_in internet{};
  internet.sin_family = AF_INET;
  internet.sin_addr = parse(address);
  std::memcpy(&request.ifr_addr, &internet, sizeof internet);
}

// A netlink request that grows by attributes.
class RouteRequest {
 public:
  RouteRequest() {
    header().nlmsg_len = NLMSG_LENGTH(sizeof(rtmsg));
    header().nlmsg_type = RTM_NEWROUTE;
    header().nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    auto& route = *static_cast<rtmsg*>(NLMSG_DATA(&header()));
    route.rtm_family = AF_INET;
    route.rtm_dst_len = 32;
    route.rtm_table = RT_TABLE_MAIN;
    route.rtm_protocol = RTPROT_KERNEL;  // that of the route which it replaces
    route.rtm_scope = RT_SCOPE_LINK;
    route.rtm_type = RTN_UNICAST;
  }
  nlmsghdr& header() { return *reinterpret_cast<nlmsghdr*>(buffer_); }

  rtattr& add(uint16_t type, const void* value, size_t size) {
    auto& attribute = *reinterpret_cast<rtattr*>(buffer_ + NLMSG_ALIGN(header().nlmsg_len));
    attribute.rta_type = type;
    attribute.rta_len = static_cast<uint16_t>(RTA_LENGTH(size));
    if (size > 0) std::memcpy(RTA_DATA(&attribute), value, size);
    header().nlmsg_len = NLMSG_ALIGN(header().nlmsg_len) + RTA_ALIGN(attribute.rta_len);
    return attribute;
  }
  // Makes what was added since a part of `attribute`.
  void close(rtattr& attribute) {
    attribute.rta_len =
        static_cast<uint16_t>(buffer_ + header().nlmsg_len - reinterpret_cast<char*>(&attribute));
  }

 private:
  alignas(nlmsghdr) char buffer_[512] = {};
};

// Replaces the route to the peer, which came with its address, by one that names the congestion
// control.
void set_route(const LinkDevice& device, int index) {
  const in_addr peer = parse(device.peer), own = parse(device.address);
  RouteRequest request;
  request.add(RTA_DST, &peer, sizeof peer);
  request.add(RTA_PREFSRC, &own, sizeof own);
  request.add(RTA_OIF, &index, sizeof index);
  rtattr& metrics = request.add(RTA_METRICS, nullptr, 0);
  request.add(RTAX_CC_ALGO, device.congestion_control.c_str(),
              device.congestion_control.size() + 1);
  request.close(metrics);

  const FileDescriptor socket = open_control(AF_NETLINK, SOCK_RAW);
  if (::send(socket.get(), &request.header(), request.header().nlmsg_len, 0) < 0)
    fail_with(errno, "cannot send", "a netlink request");
  struct {
    nlmsghdr header;
    nlmsgerr answer;
    char rest[1024];
  } reply{};
  if (::recv(socket.get(), &reply, sizeof reply, 0) < 0)
    fail_with(errno, "cannot receive", "netlink");
  if (reply.answer.error != 0)
    fail_with(-reply.answer.error, "cannot use the congestion control", device.congestion_control);
}

}  // namespace

void raise_loopback() {
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  set_up(open_control(AF_INET, SOCK_DGRAM), request);
}

FileDescriptor open_link_device(const LinkDevice& device) {
  FileDescriptor tun(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!tun.is_open()) fail_with(errno, "cannot open", "/dev/net/tun");
  ifreq request{};
  std::strcpy(request.ifr_name, "link%d");  // the kernel puts a number
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  control(tun, TUNSETIFF, request, "cannot make the device");
  if (::ioctl(tun.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) < 0)
    fail_with(errno, "cannot set the offload of", request.ifr_name);

  const FileDescriptor socket = open_control(AF_INET, SOCK_DGRAM);
  set_address(request, device.address);
  control(socket, SIOCSIFADDR, request, "cannot set the address of");
  set_address(request, device.peer);
  control(socket, SIOCSIFDSTADDR, request, "cannot set the peer of");
  request.ifr_mtu = device.mtu_bytes;
  control(socket, SIOCSIFMTU, request, "cannot set the MTU of");
  request.ifr_qlen = kDeviceQueue;
  control(socket, SIOCSIFTXQLEN, request, "cannot set the queue of");
  set_up(socket, request);
  control(socket, SIOCGIFINDEX, request, "cannot find");
  set_route(device, request.ifr_ifindex);
  return tun;
}

}  // namespace tailrace
