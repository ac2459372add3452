//go:build unix

package vendorcli

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// ownGroup puts a tool into a process group of its own and kills the whole group when its time is over: a tool started
// by a wrapper script must not survive its wrapper.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithUs(cmd.SysProcAttr)
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}
