package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/task-driver/cgroup"
)

// Engine is one Docker daemon. It is safe for concurrent use.
type Engine struct {
	host   string
	cli    *client.Client
	agreed atomic.Bool // on a version of the API
	said   atomic.Pointer[Info]
}

// idleConnection is how long a connection is kept that nobody uses: longer than the usual interval of statistics.
const idleConnection = 30 * time.Second

// Dial prepares the connection to the daemon at host (unix:///… or tcp://…). Nothing is sent yet; the API version is
// agreed on with the first call.
func Dial(host string) (*Engine, error) { return DialTLS(host, nil) }

// DialTLS is Dial with certificates; without them those that DOCKER_CERT_PATH names are used, as by docker.
func DialTLS(host string, t *TLS) (*Engine, error) {
	certificates := client.WithTLSClientConfigFromEnv()
	if t != nil {
		certificates = client.WithTLSClientConfig(t.CA, t.Cert, t.Key)
	}
	transport := &http.Transport{}
	connections := client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect})
	cli, err := client.NewClientWithOpts(connections, certificates, client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("docker endpoint %q: %w", host, err)
	}
	// The library keeps two, so that statistics of fifty tasks would open fifty new ones every second.
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost, transport.IdleConnTimeout = 128, 128, idleConnection
	return &Engine{host: host, cli: cli}, nil
}

// Host is the address the engine was dialled with.
func (e *Engine) Host() string { return e.host }

// Close ends idle connections.
func (e *Engine) Close() error { return e.cli.Close() }

// fault turns the library's errors into those of this package.
func (e *Engine) fault(doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case client.IsErrConnectionFailed(err):
		return &UnreachableError{Host: e.host, Err: unwrapAll(err)}
	case errdefs.IsNotFound(err):
		return fmt.Errorf("%s: %w: %s", doing, ErrNotFound, daemonWords(err))
	}
	return &engineError{text: doing + ": " + daemonWords(err), err: err}
}

// engineError says an error of the daemon in its own words, without the library's.
type engineError struct {
	text string
	err  error
}

func (e *engineError) Error() string { return e.text }
func (e *engineError) Unwrap() error { return e.err }

func daemonWords(err error) string {
	return strings.TrimPrefix(err.Error(), "Error response from daemon: ")
}

func unwrapAll(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// Info asks the daemon who it is, and refuses one that is too old.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	info, err := e.cli.Info(ctx)
	if err != nil {
		return Info{}, e.fault("ask the Docker daemon", err)
	}
	api := e.cli.ClientVersion()
	if versions.LessThan(api, MinAPIVersion) {
		return Info{}, fmt.Errorf("docker %s speaks Engine API %s, this driver needs %s: upgrade Docker to 18.09 or later", info.ServerVersion, api, MinAPIVersion)
	}
	if info.OSType != "" && info.OSType != "linux" {
		return Info{}, fmt.Errorf("the Docker daemon runs %s containers, this driver needs Linux containers", info.OSType)
	}
	e.agreed.Store(true)
	out := Info{At: time.Now(), Version: info.ServerVersion, APIVersion: api, RootDir: info.DockerRootDir, CDIDirs: info.CDISpecDirs}
	for name := range info.Runtimes {
		out.Runtimes = append(out.Runtimes, name)
	}
	slices.Sort(out.Runtimes)
	e.said.Store(&out)
	return out, nil
}

// RecentInfo is Info, or what the daemon said of itself within the age.
func (e *Engine) RecentInfo(ctx context.Context, age time.Duration) (Info, error) {
	if said := e.said.Load(); said != nil && time.Since(said.At) < age {
		return *said, nil
	}
	return e.Info(ctx)
}

// Create makes a container and returns its id. It returns ErrNameInUse when another container has its name.
func (e *Engine) Create(ctx context.Context, c Container) (string, error) {
	if !e.agreed.Load() { // the request depends on it
		if _, err := e.Info(ctx); err != nil {
			return "", err
		}
	}
	config, host, networks, err := translate(c, e.cli.ClientVersion())
	if err != nil {
		return "", err
	}
	made, err := e.cli.ContainerCreate(ctx, config, host, networks, nil, c.Name)
	if errdefs.IsConflict(err) && strings.Contains(err.Error(), "in use") {
		return "", fmt.Errorf("create container %s: %w: %s", c.Name, ErrNameInUse, daemonWords(err))
	}
	if err != nil {
		return "", e.fault("create container "+c.Name, err)
	}
	return made.ID, nil
}

// Start starts a container; one that runs already is no error.
func (e *Engine) Start(ctx context.Context, id string) error {
	return e.fault("start container", e.cli.ContainerStart(ctx, id, container.StartOptions{}))
}

// State reads a container.
func (e *Engine) State(ctx context.Context, id string) (State, error) {
	got, err := e.cli.ContainerInspect(ctx, id)
	if err != nil {
		return State{}, e.fault("inspect container", err)
	}
	var s State
	if got.ContainerJSONBase != nil && got.State != nil {
		s = State{
			Running: got.State.Running || got.State.Restarting, PID: got.State.Pid, ExitCode: got.State.ExitCode,
			OOMKilled: got.State.OOMKilled, Error: got.State.Error,
			StartedAt: parseTime(got.State.StartedAt), EndedAt: parseTime(got.State.FinishedAt),
		}
		s.Running = s.Running || got.State.Status == container.StateCreated
		if h := got.State.Health; h != nil && h.Status != container.NoHealthcheck {
			s.Health = h.Status
			if n := len(h.Log); n > 0 && h.Log[n-1] != nil {
				s.HealthOutput = h.Log[n-1].Output
			}
		}
	}
	if got.Config != nil {
		s.TaskID, s.Image, s.TTY = got.Config.Labels[LabelTask], got.Config.Image, got.Config.Tty
	}
	if got.NetworkSettings != nil {
		s.Namespace = got.NetworkSettings.SandboxKey
		for _, n := range got.NetworkSettings.Networks { // one: a task names no second network
			if n != nil && n.IPAddress != "" {
				s.IP = n.IPAddress
			}
			if n != nil && n.GlobalIPv6Address != "" {
				s.IPv6 = n.GlobalIPv6Address
			}
		}
	}
	return s, nil
}

// parseTime reads the daemon's times; its zero time stays zero.
func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t.UTC()
}

// WaitExit blocks until the container no longer runs. An error says nothing about the container.
func (e *Engine) WaitExit(ctx context.Context, id string) error {
	done, failed := e.cli.ContainerWait(ctx, id, container.WaitConditionNotRunning)
	select {
	case <-done:
		return nil
	case err := <-failed:
		return e.fault("wait for container", err)
	}
}

// Logs opens the container's output as frames with a time each, from the given moment on (zero: from its start), and
// goes on until the container ends. A container with a terminal has lines in place of frames. It returns ErrNoLogs where
// the daemon's log driver cannot be read.
func (e *Engine) Logs(ctx context.Context, id string, since time.Time) (io.ReadCloser, error) {
	options := container.LogsOptions{ShowStdout: true, ShowStderr: true, Follow: true, Timestamps: true}
	if !since.IsZero() {
		options.Since = fmt.Sprintf("%d.%09d", since.Unix(), since.Nanosecond())
	}
	body, err := e.cli.ContainerLogs(ctx, id, options)
	if err != nil && strings.Contains(err.Error(), "does not support reading") {
		return nil, fmt.Errorf("%w: %s", ErrNoLogs, daemonWords(err))
	}
	return body, e.fault("read container logs", err)
}

// Signal sends a signal, by name or number, to the container's first process. It returns ErrNotRunning when the
// container has ended.
func (e *Engine) Signal(ctx context.Context, id, signal string) error {
	err := e.cli.ContainerKill(ctx, id, signal)
	if errdefs.IsConflict(err) && strings.Contains(err.Error(), "is not running") {
		return ErrNotRunning
	}
	return e.fault("signal container", err)
}

// Remove kills and removes a container and its nameless volumes. One that is gone, or being removed, is no error.
func (e *Engine) Remove(ctx context.Context, id string) error {
	err := e.cli.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) || errdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress") {
		return nil
	}
	return e.fault("remove container", err)
}

// List finds the containers, running or not, that carry a label with this value.
func (e *Engine) List(ctx context.Context, label, value string) ([]Found, error) {
	all, err := e.cli.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label+"="+value))})
	if err != nil {
		return nil, e.fault("list containers", err)
	}
	out := make([]Found, 0, len(all))
	for _, c := range all {
		out = append(out, Found{ID: c.ID, TaskID: c.Labels[LabelTask], StateDir: c.Labels[LabelState], Network: c.Labels[LabelNetwork], Running: c.State == container.StateRunning, CreatedAt: time.Unix(c.Created, 0).UTC()})
	}
	return out, nil
}

// Use asks the daemon what the container has used. It costs the daemon and this process many times what cgroup.Group.Read does.
func (e *Engine) Use(ctx context.Context, id string) (cgroup.Use, error) {
	read := e.cli.ContainerStatsOneShot
	if versions.LessThan(e.cli.ClientVersion(), "1.41") {
		read = func(ctx context.Context, id string) (container.StatsResponseReader, error) {
			return e.cli.ContainerStats(ctx, id, false)
		}
	}
	got, err := read(ctx, id)
	if err != nil {
		return cgroup.Use{}, e.fault("read container statistics", err)
	}
	defer got.Body.Close() //nolint:errcheck // one document
	var s stats
	if err := json.NewDecoder(io.LimitReader(got.Body, 8<<20)).Decode(&s); err != nil {
		return cgroup.Use{}, fmt.Errorf("read container statistics: %w", err)
	}
	return s.use(), nil
}

// Exec runs a command in a running container and returns its exit code. stdin may be nil; with a terminal all
// output goes to stdout. When ctx ends the session is cut and ctx's error returned; the command itself is left to
// the container, since the Engine has no call to end it.
func (e *Engine) Exec(ctx context.Context, id string, spec ExecSpec, stdin io.Reader, stdout, stderr io.Writer, resize <-chan Size) (int, error) {
	made, err := e.cli.ContainerExecCreate(ctx, id, container.ExecOptions{
		Cmd: spec.Command, Tty: spec.TTY, AttachStdin: stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return 0, e.fault("exec in container", err)
	}
	conn, err := e.cli.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{Tty: spec.TTY})
	if err != nil {
		return 0, e.fault("exec in container", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	if stdin != nil {
		go func() {
			_, err := io.Copy(conn.Conn, stdin)
			if err := errors.Join(err, conn.CloseWrite()); err != nil {
				return // the command has ended
			}
		}()
	}
	sessionCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	go e.resizeExec(sessionCtx, made.ID, resize)
	if spec.TTY {
		_, err = io.Copy(stdout, conn.Reader)
	} else {
		err = copyFrames(stdout, stderr, conn.Reader)
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		return 0, fmt.Errorf("exec in container: %w", err)
	}
	return e.execCode(ctx, made.ID)
}

func (e *Engine) resizeExec(ctx context.Context, execID string, resize <-chan Size) {
	if resize == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-resize:
			if !ok {
				return
			}
			err := e.cli.ContainerExecResize(ctx, execID, container.ResizeOptions{Height: uint(max(0, size.Height)), Width: uint(max(0, size.Width))})
			if err != nil && ctx.Err() == nil {
				continue // the next size gets its own try
			}
		}
	}
}

// execCode reads the exit code. The output ends a moment before the daemon has noted the end of the command.
func (e *Engine) execCode(ctx context.Context, execID string) (int, error) {
	for {
		got, err := e.cli.ContainerExecInspect(ctx, execID)
		if err != nil {
			return 0, e.fault("read exit code", err)
		}
		if !got.Running {
			return got.ExitCode, nil
		}
		if !clock.Sleep(ctx, clock.System(), 20*time.Millisecond) {
			return 0, ctx.Err()
		}
	}
}
