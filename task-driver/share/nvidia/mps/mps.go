// Package mps makes shares of NVIDIA cards by the Multi-Process Service: one control daemon for each card that has shares, with
// a limit of threads and memory for every client. The daemon outlives the driver, is started anew when it dies, and is stopped
// when the last share has left its card.
//
// What is ours: a control daemon, or a server, whose pipe directory lies in this backend's folder, as its own environment
// in /proc tells. That holds after a crash and after the state folder was wiped. Any other is foreign and never touched; a card
// that it may serve is refused, since two daemons of one card do not divide it between them.
package mps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/bronze"
)

// Name is the backend's name.
const Name = string(accel.ModeMPS)

const program = "nvidia-cuda-mps-control"

// Options are what the plugin's config and tests say.
type Options struct {
	// Overuse is what happens to a task whose processes together hold more of the card's memory than it was given: MPS
	// itself binds each process alone.
	Overuse bronze.Policy
	Clock   clock.Clock // the system's when nil
}

// Backend makes shares by MPS.
type Backend struct {
	host  share.Host
	notes share.Notes[note]
	clock clock.Clock
	watch *bronze.Backend

	// mu is held while daemons and notes change, since Keep starts daemons too.
	mu sync.Mutex
}

var (
	_ share.Backend    = (*Backend)(nil)
	_ share.Fitter     = (*Backend)(nil)
	_ share.Keeper     = (*Backend)(nil)
	_ share.SelfTester = (*Backend)(nil)
)

// note is what is remembered of one share.
type note struct {
	Card string `json:"card"`
}

// New makes the backend. It touches nothing.
func New(h share.Host, o Options) *Backend {
	b := &Backend{host: h, notes: share.NotesOf[note](h, string(accel.NVIDIA), Name), clock: o.Clock}
	if b.clock == nil {
		b.clock = clock.System()
	}
	readers := map[accel.Vendor]bronze.Reader{accel.NVIDIA: bronze.NVIDIA{Tool: h.Tool}}
	b.watch = bronze.New(h, readers, bronze.Options{Overuse: o.Overuse, Clock: b.clock})
	return b
}

// Name is the backend's name.
func (b *Backend) Name() string { return Name }

// Vendor is NVIDIA.
func (b *Backend) Vendor() accel.Vendor { return accel.NVIDIA }

// Describe says what the MPS server enforces.
func (b *Backend) Describe() share.Isolation {
	return share.Isolation{
		QoS: accel.Silver, Memory: share.ByDriver, Compute: share.ByDriver, Faults: share.NotAtAll, Sight: share.NotAtAll,
		Forms:    []accel.Form{accel.Shared},
		Limits:   "The MPS server binds each process to the task's memory and threads, also when it is alone on the card; what all processes of a task hold together is watched and told within 10 s. A fatal fault of one task ends those of its card. A process that takes the variables out of its environment is watched only. One that runs as the daemon's user can command it: stop it, and with it the others' work. Tasks of one card must run as one user, and share the host's IPC name space. One card for each task. Not tested on hardware by this project.",
		LimitsZH: "MPS 服务按进程限制任务的显存与线程比例，即使卡上只有该任务；任务内所有进程合计的占用由监视发现，10 秒内告知。某个任务的致命错误会终止同一张卡上的其他任务。清除自身环境变量的进程仅受监视。以守护进程同一用户运行的任务可以向守护进程下达命令，例如停止它，从而中断同卡其他任务。同一张卡上的任务须以同一用户运行，并共用主机的 IPC 命名空间。每个任务一张卡。本项目未在硬件上测试。",
	}
}

// Fits refuses tasks of several cards.
func (b *Backend) Fits(a share.Ask) error {
	if a.Of > 1 {
		return fmt.Errorf("a process under MPS sees the cards of one daemon, and each card has its own; the task has %d: ask for one card, or use hami", a.Of)
	}
	return nil
}

// longestSocket is the longest path of a Unix socket, and the longest name that MPS gives one in its pipe directory.
const (
	longestSocket = 107
	longestName   = "control_privileged"
)

// Probe looks for the daemon's program.
func (b *Backend) Probe(context.Context) error {
	if _, err := b.host.Tool.Look(program); err != nil {
		return fmt.Errorf("%s is not there: install it with NVIDIA's driver (package nvidia-compute-utils on Debian and Ubuntu) (%w)", program, err)
	}
	if _, err := b.host.Tool.Look("nvidia-smi"); err != nil {
		return fmt.Errorf("nvidia-smi is not there: install NVIDIA's driver (%w)", err)
	}
	if n := len(filepath.Join(b.dirs("GPU-").pipe, longestName)); n > longestSocket {
		return fmt.Errorf("state_dir is too long a path for the sockets of MPS by %d characters: choose a shorter one", n-longestSocket)
	}
	return nil
}

// noCard is a number that no card has, so that a daemon serves none.
const noCard = "-1"

// SelfTest starts a daemon that no card is visible to, has it answer and stops it: what keeps one from starting, from being
// reached or from obeying on this node shows here, and not at the first share. That limits bind, a task with a card alone
// could show. What a kill leaves of it is a daemon of ours without a share, which the reconciler stops.
func (b *Backend) SelfTest(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.dirsAt("selftest")
	if err := b.stop(ctx, d); err != nil {
		return err
	}
	err := b.start(ctx, noCard, d)
	if err == nil {
		err = b.answers(ctx, d)
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if err := errors.Join(err, b.stop(undo, d)); err != nil {
		return fmt.Errorf("a daemon of MPS that no card is visible to: %w", err)
	}
	return nil
}

// answers has a daemon list its servers.
func (b *Backend) answers(ctx context.Context, d dirs) error {
	out, err := b.command(ctx, d, "get_server_list")
	if err == nil && out.ExitCode != 0 {
		err = fmt.Errorf("it does not answer: status %d: %s", out.ExitCode, firstLine(out))
	}
	return err
}

// dirs are the folders of one card's daemon, as the machine knows them.
type dirs struct{ card, pipe, log string }

func (b *Backend) base() string { return filepath.Join(b.host.Dir, string(accel.NVIDIA), Name) }

// dirs has short names, since the sockets' paths must be.
func (b *Backend) dirs(card string) dirs {
	sum := sha256.Sum256([]byte(card))
	return b.dirsAt("c" + hex.EncodeToString(sum[:4]))
}

func (b *Backend) dirsAt(name string) dirs {
	dir := filepath.Join(b.base(), name)
	return dirs{card: dir, pipe: filepath.Join(dir, "pipe"), log: filepath.Join(dir, "log")}
}

// Names and places that a client knows. The target is where CUDA looks when nothing tells it a place, so that a process that
// lost its environment comes to the daemon too.
const (
	envPipe    = "CUDA_MPS_PIPE_DIRECTORY"
	envLog     = "CUDA_MPS_LOG_DIRECTORY"
	envThreads = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	envMemory  = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	envVisible = "CUDA_VISIBLE_DEVICES"
	target     = "/tmp/nvidia-mps"
)

// Prepare makes sure that the card's daemon runs, and tells how to use it.
func (b *Backend) Prepare(ctx context.Context, a share.Ask, event func(string)) (share.Setup, error) {
	if err := b.Fits(a); err != nil {
		return share.Setup{}, err
	}
	if a.MemoryMiB == 0 {
		return share.Setup{}, errors.New("a share by MPS needs its memory: write memory in the accelerator block")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old, err := b.notes.All()
	if err != nil {
		return share.Setup{}, err
	}
	if was, noted := old[a.ID]; noted && was.Card != a.Card.UUID {
		if err := b.release(ctx, a.ID); err != nil {
			return share.Setup{}, err
		}
	}
	if err := b.notes.Put(a.ID, note{Card: a.Card.UUID}); err != nil {
		return share.Setup{}, err
	}
	started, err := b.ensure(ctx, a.Card.UUID, event)
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		return share.Setup{}, errors.Join(err, b.release(undo, a.ID))
	}
	if started {
		event("the MPS daemon of " + a.Card.UUID + " runs")
	}
	return b.setup(a), nil
}

// setup is what a client needs.
func (b *Backend) setup(a share.Ask) share.Setup {
	pipe := b.dirs(a.Card.UUID).pipe
	s := share.Setup{Env: map[string]string{
		envPipe:   pipe,
		envMemory: "0=" + strconv.FormatUint(a.MemoryMiB, 10) + "M", // the task's only card is its device 0
	}}
	if a.Container {
		s.Env[envPipe] = target
		// A client opens and connects to what lies in the folder, and makes nothing there: NVIDIA's own container toolkit mounts
		// it like this too. So no task can put a pipe of its own in the place of the daemon's.
		s.Mounts = []share.Mount{{Source: pipe, Target: target, ReadOnly: true}}
		s.IPCHost = true
	}
	if a.ComputePct > 0 && a.ComputePct < 100 {
		s.Env[envThreads] = strconv.Itoa(a.ComputePct)
	}
	return s
}

// Release stops the daemon when the share was the last of its card.
func (b *Backend) Release(ctx context.Context, id share.ID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.release(ctx, id)
}

// release does it under the lock. A share without a note is one whose folder was wiped: others may hold its card, so that only
// a daemon that serves nobody is stopped.
func (b *Backend) release(ctx context.Context, id share.ID) error {
	notes, err := b.notes.All()
	n, noted := notes[id]
	if !noted {
		if err != nil {
			return err
		}
		return b.sweep(ctx, notes, false)
	}
	last := true
	for other, o := range notes {
		last = last && (other == id || o.Card != n.Card)
	}
	if last {
		if err := b.stop(ctx, b.dirs(n.Card)); err != nil {
			return err
		}
	}
	return errors.Join(err, b.notes.Drop(id))
}

// Reconcile drops shares that are not live, writes those that are anew where the folder was wiped, starts what died, and stops
// daemons of ours that no share holds.
func (b *Backend) Reconcile(ctx context.Context, live map[share.ID]share.Ask) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	notes, err := b.notes.All()
	if err != nil {
		return err // which cards have shares is not known: no daemon is stopped
	}
	var problems []error
	for id := range notes {
		if _, is := live[id]; !is {
			problems = append(problems, b.release(ctx, id))
		}
	}
	for id, a := range live {
		if _, noted := notes[id]; !noted {
			problems = append(problems, b.notes.Put(id, note{Card: a.Card.UUID}))
		}
		_, err := b.ensure(ctx, a.Card.UUID, func(string) {})
		problems = append(problems, err)
	}
	if notes, err = b.notes.All(); err == nil {
		err = b.sweep(ctx, notes, true)
	}
	return errors.Join(append(problems, err)...)
}
