//go:build !linux

package server

import "net"

// gone takes a client that sends nothing more for one that left: on Linux alone the two are told apart.
func gone(net.Conn) bool { return true }
