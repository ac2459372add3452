package process

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// writable tells a folder of the cgroup file system that can be written to from one that cannot.
func writable(folder string) bool {
	return unix.Access(filepath.Join(folder, "cgroup.procs"), unix.W_OK) == nil && unix.Access(folder, unix.W_OK) == nil
}

// startIn starts the command inside the cgroups, before its first instruction: in version 2 it is born there, in
// version 1 it is held at its exec by ptrace(2), moved and let go.
func startIn(cmd *exec.Cmd, g Group) error {
	switch g.Mode {
	case V2:
		fd, err := unix.Open(g.Paths[0], unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open cgroup: %w", err)
		}
		defer unix.Close(fd) //nolint:errcheck // read-only descriptor
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, fd
		return cmd.Start()
	case V1:
		return startHeld(cmd, g)
	default:
		return cmd.Start()
	}
}

func startHeld(cmd *exec.Cmd, g Group) error {
	// A traced child obeys only the thread that made it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	var status unix.WaitStatus
	_, err := unix.Wait4(pid, &status, 0, nil)
	for errors.Is(err, unix.EINTR) {
		_, err = unix.Wait4(pid, &status, 0, nil)
	}
	if err == nil && !status.Stopped() {
		err = errors.New("it ended before it began")
	}
	if err == nil {
		err = g.add(pid)
	}
	if err == nil {
		err = unix.PtraceDetach(pid)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("move into cgroup: %w", err), cmd.Process.Kill(), cmd.Wait())
	}
	return nil
}

// add moves a process into every cgroup. One that has ended meanwhile is no error.
func (g Group) add(pid int) error {
	for _, path := range g.Paths {
		err := set(path, "cgroup.procs", strconv.Itoa(pid))
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// killProcess kills a process. One that has ended is no error.
func killProcess(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
