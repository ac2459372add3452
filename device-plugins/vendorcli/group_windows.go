package vendorcli

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps Ctrl-C at the console from the tool. Windows has no signal for a group: the tool itself is killed when
// its time is over (what CommandContext does), and the pipes of what it started are closed a moment later.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
