package server

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// closeWait is the state of a TCP connection whose peer sends nothing more. Source: include/net/tcp_states.h.
const closeWait = 8

// gone reports whether the peer of a connection that it has half closed is not there any more.
func gone(c net.Conn) bool {
	of, ok := c.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := of.SyscallConn()
	if err != nil {
		return true
	}
	state := uint8(0)
	if err := raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			state = info.State
		}
	}); err != nil {
		return true
	}
	return state != closeWait
}
