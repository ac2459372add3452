package host

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"syscall"
	"time"
)

// ownGroup keeps Ctrl-C in the host's terminal from the plugin, so that its end is left to the host.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// checkPeer asks the kernel who listens at the socket.
func checkPeer(info ReattachInfo) error {
	conn, err := net.DialTimeout(info.Network, info.Address, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("network %q is not a unix socket", info.Network)
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if credErr != nil {
		return credErr
	}
	if int(cred.Pid) != info.Pid {
		return fmt.Errorf("the socket belongs to process %d, not %d", cred.Pid, info.Pid)
	}
	return nil
}

// killPeer kills the process that listens at the socket, if it is the one the host was told of.
func killPeer(info ReattachInfo) error {
	if checkPeer(info) != nil {
		return nil
	}
	if err := syscall.Kill(info.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
