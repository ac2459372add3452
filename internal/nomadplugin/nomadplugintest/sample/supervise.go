//go:build unix

package sample

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// superviseSpec is what a supervisor reads from spec.json in its folder.
type superviseSpec struct {
	Command        []string
	Env            []string
	Dir            string
	Stdout, Stderr string
}

// result is how a command ended.
type result struct{ Code, Signal int }

// supervise runs one command and leaves its pid and its result in files, so that they outlive the driver.
func supervise(dir string) error {
	var spec superviseSpec
	if err := readJSON(filepath.Join(dir, "spec.json"), &spec); err != nil {
		return err
	}
	cmd := exec.Command(spec.Command[0], spec.Command[1:]...)
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := os.OpenFile(spec.Stdout, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer stdout.Close()
	stderr, err := os.OpenFile(spec.Stderr, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer stderr.Close()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		return writeJSON(filepath.Join(dir, "exit.json"), result{Code: 127})
	}
	if err := writeJSON(filepath.Join(dir, "pid.json"), cmd.Process.Pid); err != nil {
		return err
	}
	var r result
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		r.Code = exit.ExitCode()
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			r = result{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
		}
	}
	return writeJSON(filepath.Join(dir, "exit.json"), r)
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// writeJSON writes a file that readers see whole or not at all.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
