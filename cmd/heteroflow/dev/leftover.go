package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// pidFile names, beside the agent's configuration, the agent that runs on it.
func pidFile(config string) string { return filepath.Join(filepath.Dir(config), "agent.pid") }

// endLeftover ends the agent that a killed process left behind: it holds the ports and the data of the next one. Its
// tasks run on, and the next agent finds them.
func endLeftover(ctx context.Context, config string) error {
	text, err := os.ReadFile(pidFile(config))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for an agent that was left running: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || !runsOn(pid, config) { // a pid is given again to others: only the one with our file is ours
		return nil
	}
	if err := askToEnd(pid); err != nil {
		return fmt.Errorf("end the Nomad agent that was left running, process %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for runsOn(pid, config) {
		if ctx.Err() != nil {
			return fmt.Errorf("a Nomad agent was left running, process %d, and does not end: kill it", pid)
		}
		clock.Sleep(ctx, clock.System(), 100*time.Millisecond)
	}
	return nil
}

// runsOn reports whether a process was started with a configuration file.
func runsOn(pid int, config string) bool {
	args, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return err == nil && bytes.Contains(args, []byte("-config\x00"+config+"\x00"))
}
