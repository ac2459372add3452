//go:build linux

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// API calls the placement service's own API as the admin.
func (c *Cluster) API(method, path string, in, out any) error {
	return call(method, c.URL+path, c.AdminKey, in, out)
}

// Nomads calls Nomad's API past the placement service.
func (c *Cluster) Nomads(method, path string, in, out any) error {
	return call(method, c.AgentURL+path, "", in, out)
}

// CLI runs a command line tool against the placement service and returns what it printed and its exit code.
func (c *Cluster) CLI(tool string, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	if tool == "heteroflow" {
		tool = filepath.Join(c.bin, "heteroflow")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, args...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+c.URL, "NOMAD_TOKEN="+c.AdminKey, "HETEROFLOW_ADDR="+c.URL, "HETEROFLOW_TOKEN="+c.AdminKey, "NOMAD_CLI_NO_COLOR=1")
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%s %s: %v", tool, strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Eventually waits until what is said holds, and fails the test with the last reason otherwise.
func (c *Cluster) Eventually(timeout time.Duration, what string, check func() error) {
	c.t.Helper()
	Eventually(c.t, timeout, what, check)
}

// Eventually polls check until it returns nil or the time is over.
func Eventually(t testing.TB, timeout time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("within %s: %s: %v", timeout, what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func call(method, url, token string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = strings.NewReader(string(raw))
	}
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %d: %s", method, url, resp.StatusCode, strings.TrimSpace(string(raw)))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

func get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s: %d: %s", url, resp.StatusCode, raw)
	}
	return string(raw), err
}

func tail(s string, lines int) string {
	all := strings.Split(s, "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
