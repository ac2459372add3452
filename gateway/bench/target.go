//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// target is something that stands before the engine and is measured.
type target struct {
	name string
	// launch starts it on an address. The folder is its own.
	launch func(addr, dir string) (*process, error)

	addr string
	*process
}

// up starts the target and waits until it answers. It gives the number of calls that a gateway would meter.
func (t *target) up(ctx context.Context, dir, key string) (calls int, err error) {
	if t.launch == nil {
		return 0, nil
	}
	if t.addr, err = freeAddr(); err != nil {
		return 0, err
	}
	own, err := os.MkdirTemp(dir, strings.ReplaceAll(t.name, "/", "-"))
	if err != nil {
		return 0, err
	}
	if t.process, err = t.launch(t.addr, own); err != nil {
		return 0, err
	}
	list := fmt.Appendf(nil, "GET /v1/models HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\n\r\n", key)
	if err := t.await(ctx, func() error {
		c, err := dial(t.addr)
		if err != nil {
			return err
		}
		defer c.conn.Close()
		body, err := c.get(list, []byte{})
		if err == nil && !bytes.Contains(body, []byte(`"m"`)) {
			err = errAnswer
		}
		return err
	}); err != nil {
		return 0, err
	}
	call := request(key, "", conversation(0, 0, false))
	err = t.await(ctx, func() error {
		c, err := dial(t.addr)
		if err != nil {
			return err
		}
		defer c.conn.Close()
		calls++
		return c.do(call)
	})
	return calls, err
}

// await tries until there is no error.
func (t *target) await(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-t.done:
			return fmt.Errorf("%s ended: %s", t.name, t.out)
		case <-ctx.Done():
			return fmt.Errorf("%s did not come up: %w", t.name, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// settledCPU is what the target's process has run once it is idle; 0 for one without a process.
func (t *target) settledCPU() time.Duration {
	if t.process == nil {
		return 0
	}
	return t.settled()
}

// cpuNow is what it has run so far.
func (t *target) cpuNow() time.Duration {
	if t.process == nil {
		return 0
	}
	return t.cpu()
}

func (t *target) down() {
	if t.process != nil {
		t.stop()
		t.process = nil
	}
}

// mostStreams is how many streams a proxy can have open, two connections each, up to 10,000.
func mostStreams() int {
	limit := syscall.Rlimit{}
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 500
	}
	return min(10_000, int(limit.Max-200)/2)
}

// haproxy gives HAProxy, nil where it is not installed.
func haproxy(engines []string) *target {
	path := installed("haproxy")
	if path == "" {
		return nil
	}
	return &target{name: "haproxy", launch: func(addr, dir string) (*process, error) {
		var b strings.Builder
		fmt.Fprintf(&b, "global\n  nbthread 1\n  maxconn %d\ndefaults\n  mode http\n  option http-no-delay\n  http-reuse always\n"+
			"  timeout connect 3s\n  timeout client 10m\n  timeout server 10m\nfrontend f\n  bind %s backlog 4096\n  default_backend b\nbackend b\n  balance roundrobin\n", mostStreams()+50, addr)
		for i, engine := range engines {
			fmt.Fprintf(&b, "  server e%d %s\n", i, engine)
		}
		config := filepath.Join(dir, "haproxy.cfg")
		if err := os.WriteFile(config, []byte(b.String()), 0o600); err != nil {
			return nil, err
		}
		return start(measuredCore, nil, path, "-db", "-f", config)
	}}
}

// nginx gives nginx, nil where it is not installed.
func nginx(engines []string) *target {
	path := installed("nginx")
	if path == "" {
		return nil
	}
	return &target{name: "nginx", launch: func(addr, dir string) (*process, error) {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // its worker is another user
			return nil, err
		}
		// It begins to close connections that wait when a sixteenth of them is left.
		config := filepath.Join(dir, "nginx.conf")
		text := fmt.Sprintf("daemon off;\nworker_processes 1;\nuser root;\npid %[1]s/pid;\nerror_log stderr error;\nevents { worker_connections %[4]d; }\n"+
			"http {\n  access_log off;\n  client_max_body_size 64m;\n  client_body_temp_path %[1]s/body;\n  proxy_temp_path %[1]s/proxy;\n  fastcgi_temp_path %[1]s/f;\n  uwsgi_temp_path %[1]s/u;\n  scgi_temp_path %[1]s/s;\n"+
			"  keepalive_requests 1000000000;\n  upstream b {\n    server %[2]s;\n    keepalive 512;\n    keepalive_requests 1000000000;\n  }\n"+
			"  server {\n    listen %[3]s backlog=4096;\n    location / {\n      proxy_pass http://b;\n      proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_buffering off;\n      proxy_read_timeout 10m;\n    }\n  }\n}\n",
			dir, strings.Join(engines, ";\n    server "), addr, 5*mostStreams()/2)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			return nil, err
		}
		return start(measuredCore, nil, path, "-c", config)
	}}
}

// reverse gives net/http/httputil's ReverseProxy.
func reverse(self string, engines []string) *target {
	return &target{name: "httputil", launch: func(addr, _ string) (*process, error) {
		return start(measuredCore, []string{"GOMAXPROCS=1"}, self, append([]string{"-serve", "httputil", addr}, engines...)...)
	}}
}

// installed is the path of a program, also of one that lies where only root looks; empty when there is none.
func installed(name string) string {
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path := filepath.Join("/usr/sbin", name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}
