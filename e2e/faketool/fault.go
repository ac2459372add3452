//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/share"
)

// fault is what happens at one call; the empty one is nothing.
type fault string

// The faults. Those that end in -after happen when the tool has done what it was asked.
const (
	fails     fault = "fail"       // it says that it failed, and did nothing
	failsLate fault = "fail-after" // it says that it failed, and did it
	hangs     fault = "hang"
	hangsLate fault = "hang-after"
	kills     fault = "kill" // the plugin that called it dies
	killsLate fault = "kill-after"
)

// takeFault looks whether something is to happen at this call, and counts it.
func takeFault(dir, call string) (fault, error) {
	path := filepath.Join(dir, "fault")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	unlock, err := lock(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	body, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	lines := strings.SplitN(strings.TrimSpace(string(body)), "\n", 3)
	if len(lines) != 3 {
		return "", fmt.Errorf("%s has %d lines and not 3", path, len(lines))
	}
	before, err := strconv.Atoi(lines[1])
	if err != nil {
		return "", err
	}
	which, err := regexp.Compile(lines[2])
	if err != nil || !which.MatchString(call) {
		return "", err
	}
	if before > 0 {
		return "", os.WriteFile(path, fmt.Appendf(nil, "%s\n%d\n%s\n", lines[0], before-1, lines[2]), 0o600)
	}
	return fault(lines[0]), os.Rename(path, path+".happened")
}

// strike lets the fault happen where it is its moment: before the tool did something, or after. done tells that the call ends
// with out.
func (f fault) strike(after bool) (out share.Output, done bool, err error) {
	switch {
	case f == fails && !after, f == failsLate && after:
		return share.Output{Stderr: "internal error\n", ExitCode: 255}, true, nil
	case f == hangs && !after, f == hangsLate && after:
		time.Sleep(24 * time.Hour) // whoever called it gives up
	case f == kills && !after, f == killsLate && after:
		err = killCaller()
	}
	return share.Output{}, false, err
}

// killCaller kills the plugin that called, through what stands between, and waits to die with it.
func killCaller() error {
	pid := os.Getppid()
	for pid > 1 {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil {
			return err
		}
		if strings.HasPrefix(filepath.Base(exe), "heteroflow") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				return err
			}
			time.Sleep(time.Minute)
			return errors.New("the caller was killed, and the tool was not")
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 {
			return fmt.Errorf("stat of process %d tells no parent", pid)
		}
		if pid, err = strconv.Atoi(fields[1]); err != nil {
			return err
		}
	}
	return errors.New("no plugin called")
}
