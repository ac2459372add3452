//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
)

// Daemon is a Docker daemon of a test's own, which may be killed. containerd is a process beside it, as on a machine where
// systemd runs both: one that the daemon started itself would die with it, and where nobody takes in dead children the daemon
// would wait for it forever, since its pid is there still.
type Daemon struct {
	Host   string // address
	dir    string
	bridge string
	more   []string
	c      *Cluster // starts processes
	docker *Process
	below  *Process // containerd
}

// ErrNoDaemon is why a machine has no Docker daemon of its own for a test.
var ErrNoDaemon = errors.New("a Docker daemon of the test's own needs dockerd, containerd, ip and root")

// StartDaemon starts a daemon with further arguments, and ends it with the test. It has a bridge of its own that leads nowhere:
// a daemon that is told to have none (--bridge=none) deletes docker0, which is the bridge of whatever daemon the machine has.
func StartDaemon(t testing.TB, more ...string) (*Daemon, error) {
	t.Helper()
	for _, program := range []string{"dockerd", "containerd", "runc", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoDaemon, err)
		}
	}
	if os.Geteuid() != 0 {
		return nil, ErrNoDaemon
	}
	dir, err := os.MkdirTemp("", "hfd") // sockets have short names only, and bridges 15 characters
	if err != nil {
		return nil, err
	}
	d := &Daemon{bridge: filepath.Base(dir), Host: "unix://" + filepath.Join(dir, "docker.sock"), dir: dir, more: more, c: &Cluster{Dir: dir, t: t, started: &[]*Process{}}}
	t.Cleanup(d.end)
	for _, args := range [][]string{{"link", "add", d.bridge, "type", "bridge"}, {"address", "add", "192.0.2.1/25", "dev", d.bridge}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), filepath.Join(dir, "containerd.sock"))
	if err := os.WriteFile(filepath.Join(dir, "containerd.toml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	d.Start(false)
	d.Await()
	return d, nil
}

// Start starts what does not run of the daemon and containerd. Containers live over a start only when it is told to keep them.
func (d *Daemon) Start(keep bool) {
	d.c.t.Helper()
	if d.below == nil || !d.below.Alive() {
		d.below = d.c.run("containerd", nil, "containerd", "--config", filepath.Join(d.dir, "containerd.toml"))
	}
	if d.docker != nil && d.docker.Alive() {
		return
	}
	d.docker = d.c.run("dockerd", nil, "dockerd", slices.Concat([]string{
		"--data-root", filepath.Join(d.dir, "data"), "--exec-root", filepath.Join(d.dir, "exec"), "--pidfile", filepath.Join(d.dir, "pid"),
		"--containerd", filepath.Join(d.dir, "containerd.sock"), "--host", d.Host, "--bridge", d.bridge, "--iptables=false",
		fmt.Sprintf("--live-restore=%t", keep),
	}, d.more)...)
}

// Kill ends the daemon as kill -9 does, and containerd too where that is said.
func (d *Daemon) Kill(both bool) {
	if d.docker.Kill(); both {
		d.below.Kill()
	}
}

// Await waits until the daemon answers. One that ended at its start is started again: it may have come before containerd.
func (d *Daemon) Await() {
	d.c.t.Helper()
	docker, err := client.NewClientWithOpts(client.WithHost(d.Host), client.WithAPIVersionNegotiation())
	if err != nil {
		d.c.t.Fatal(err)
	}
	defer docker.Close() //nolint:errcheck // it only asked
	d.c.Eventually(2*time.Minute, "the Docker daemon answers", func() error {
		d.Start(false)
		_, err := docker.Ping(context.Background())
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, tail(d.docker.Output(), 5))
		}
		return err
	})
}

// end removes what runs, ends the processes and lets go of what they mounted.
func (d *Daemon) end() {
	if docker, err := client.NewClientWithOpts(client.WithHost(d.Host), client.WithAPIVersionNegotiation()); err == nil {
		list, err := docker.ContainerList(context.Background(), container.ListOptions{All: true})
		if err != nil {
			d.c.t.Logf("list what is left in containers: %v", err)
		}
		for _, c := range list {
			if err := docker.ContainerRemove(context.Background(), c.ID, container.RemoveOptions{Force: true}); err != nil {
				d.c.t.Logf("remove container %s: %v", c.ID, err)
			}
		}
		docker.Close() //nolint:errcheck // nothing was written
	}
	for _, p := range []*Process{d.docker, d.below} {
		if p != nil && p.Alive() {
			p.Stop()
		}
	}
	if d.c.t.Failed() {
		for _, p := range *d.c.started {
			d.c.t.Logf("last output of %s:\n%s", p.Name, tail(p.Output(), 15))
			d.c.keep(p)
		}
	}
	if out, err := exec.Command("ip", "link", "delete", d.bridge).CombinedOutput(); err != nil {
		d.c.t.Logf("ip link delete %s: %v: %s", d.bridge, err, out)
	}
	d.c.unmount()
	if err := os.RemoveAll(d.dir); err != nil {
		d.c.t.Logf("remove %s: %v", d.dir, err)
	}
}
