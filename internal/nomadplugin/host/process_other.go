//go:build !linux

package host

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
)

func ownGroup(*exec.Cmd) {}

// checkPeer refuses: only Linux tells which process listens at a socket, and a stranger must never be killed.
func checkPeer(ReattachInfo) error {
	return fmt.Errorf("a running plugin cannot be found again on %s, only on Linux: end the plugin's process, so that a new one is started", runtime.GOOS)
}

func killPeer(info ReattachInfo) error {
	return errors.Join(errors.New("the plugin does not end"), checkPeer(info))
}
