//go:build unix

// Package postgres starts a private PostgreSQL for tests from the installed server binaries, and gives each test a
// schema of its own. What is stored in it does not belong here.
package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNotInstalled says that no PostgreSQL server binaries were found.
var ErrNotInstalled = errors.New("no PostgreSQL server found on PATH or in /usr/lib/postgresql/*/bin: install one, e.g. apt-get install postgresql")

// startTimeout is generous: initdb and the first start share two cores with other tests.
const startTimeout = 2 * time.Minute

// Cluster is a running server that listens on a unix socket in its own temporary folder, and nowhere else.
type Cluster struct {
	dir  string
	bin  string
	attr *syscall.SysProcAttr
	out  *bytes.Buffer // what the server logged; read only after done
	cmd  *exec.Cmd
	done chan struct{} // closed when the server has ended
}

// Start makes a cluster in a temporary folder and starts it. As root it runs as the user postgres or nobody, since
// the server refuses root. The server ends when this process does, also when it is killed. Durability is off.
func Start(ctx context.Context) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	attr, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "heteroflow-pg-")
	if err != nil {
		return nil, fmt.Errorf("make folder for cluster: %w", err)
	}
	c := &Cluster{dir: dir, bin: bin, attr: attr}
	err = c.initialise(ctx)
	if err == nil {
		err = c.launch()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := c.await(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// Halt stops the server and keeps its data: connections break, new ones are refused. It is no crash, because with
// durability off a crash would lose what was committed last.
func (c *Cluster) Halt() error {
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("halt postgres: %w", err)
	}
	<-c.done
	return nil
}

// Resume starts a halted server again, at the same url.
func (c *Cluster) Resume(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.launch(); err != nil {
		return err
	}
	return c.await(ctx)
}

// binaries is the folder of the newest installed server.
func binaries() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(real), nil
		}
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", fmt.Errorf("look for PostgreSQL: %w", err)
	}
	if len(found) == 0 {
		return "", ErrNotInstalled
	}
	version := func(path string) int {
		n, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		if err != nil {
			return 0 // a folder that is not named for a version loses against those that are
		}
		return n
	}
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
}

// unprivileged is how to run the server: as we are, or, when we are root, as someone else.
func unprivileged() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{}
	if os.Geteuid() != 0 {
		return attr, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("read ids of user %s: %w", name, err)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return attr, nil
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and there is no user postgres or nobody to run it as")
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

func (c *Cluster) initialise(ctx context.Context) error {
	if c.attr.Credential != nil {
		if err := os.Chown(c.dir, int(c.attr.Credential.Uid), int(c.attr.Credential.Gid)); err != nil {
			return fmt.Errorf("give folder to the server's user: %w", err)
		}
	}
	initdb := exec.CommandContext(ctx, filepath.Join(c.bin, "initdb"), "-D", c.data(), "-U", "postgres", "-A", "trust",
		"-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = c.attr, c.dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func (c *Cluster) launch() error {
	args := []string{"-D", c.data(), "-k", c.dir, "-c", "listen_addresses="}
	for _, setting := range []string{
		"fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=300", "shared_buffers=64MB",
	} {
		args = append(args, "-c", setting)
	}
	c.out = &bytes.Buffer{}
	c.cmd = exec.Command(filepath.Join(c.bin, "postgres"), args...)
	c.cmd.Dir, c.cmd.Stdout, c.cmd.Stderr = c.dir, c.out, c.out
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.attr.Credential}
	dieWithParent(c.cmd.SysProcAttr)
	cmd, done, started := c.cmd, make(chan struct{}), make(chan error)
	c.done = done
	go func() {
		// The kernel ties "end with the parent" to the thread that started the child, so that thread has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is told by its log
			close(done)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	return nil
}

// await polls until the server takes connections, has ended, or ctx does.
func (c *Cluster) await(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, c.URL())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-c.done:
			return fmt.Errorf("postgres ended while starting: %s", strings.TrimSpace(c.out.String()))
		case <-ctx.Done():
			return fmt.Errorf("postgres did not start: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// URL is a url for pgx of the cluster's first database, as its superuser.
func (c *Cluster) URL() string {
	return "postgres://postgres@/postgres?host=" + url.QueryEscape(c.dir)
}

// Socket is the path of the server's unix socket.
func (c *Cluster) Socket() string { return filepath.Join(c.dir, ".s.PGSQL.5432") }

// Stop ends the server and removes its folder.
func (c *Cluster) Stop() error {
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	select {
	case <-c.done:
	case <-time.After(30 * time.Second):
		// SIGQUIT is the server's immediate shutdown; its children end with it, as they would not with SIGKILL.
		if err := c.cmd.Process.Signal(syscall.SIGQUIT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop postgres at once: %w", err)
		}
		<-c.done
	}
	return os.RemoveAll(c.dir)
}
