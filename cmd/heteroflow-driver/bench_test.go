//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
)

// scene is one kind of task on one kind of node.
type scene struct {
	config, task map[string]any
	share        func(serial int) []grant.Reservation // nil: no card
	engine       string                               // host of the container engine; empty for processes
}

func (s scene) reservations(serial int) []grant.Reservation {
	if s.share == nil {
		return nil
	}
	return s.share(serial)
}

// nvidia are slices of cards of NVIDIA, which this machine need not have: what makes them are the means of the scene.
func nvidia(serial int) []grant.Reservation {
	return []grant.Reservation{slice(accel.NVIDIA, "GPU-1f0c9a77-0000-4000-8000-00000000000", serial)}
}

func processes() scene {
	return scene{
		config: map[string]any{"docker": map[string]any{"enabled": false}, "process": map[string]any{"enabled": true}},
		task:   map[string]any{"runtime": "process", "command": "/bin/sleep", "args": []string{"1000"}},
	}
}

// bronzeProcesses share cards by agreement. The tool by which their use is watched is a script that answers at once.
func bronzeProcesses(b *testing.B) scene {
	tool := brandtest.Tool(b, "nvidia-smi", map[string]brandtest.Answer{"*": {}})
	b.Setenv("PATH", filepath.Dir(tool)+string(os.PathListSeparator)+os.Getenv("PATH"))
	s := processes()
	s.share = nvidia
	return s
}

func containers(b *testing.B) scene {
	engine := dockertest.New(b)
	engine.AddImage("busybox:1")
	engine.SetRuntimes("nvidia", "runc")
	return scene{
		config: map[string]any{"docker": map[string]any{"endpoint": engine.Host}},
		task:   map[string]any{"image": "busybox:1", "args": []string{"sleep"}}, engine: engine.Host,
	}
}

// silverContainers share cards by HAMi's library, of which a file of the right kind is there.
func silverContainers(b *testing.B) scene {
	tool := brandtest.Tool(b, "nvidia-smi", map[string]brandtest.Answer{"*": {}})
	b.Setenv("PATH", filepath.Dir(tool)+string(os.PathListSeparator)+os.Getenv("PATH"))
	s := containers(b)
	s.config["hami_library"] = library(b)
	s.config["share"] = map[string]any{"nvidia": []string{"hami"}}
	s.share = nvidia
	return s
}

// library is a shared library with nothing in it.
func library(b *testing.B) string {
	b.Helper()
	var elf bytes.Buffer
	elf.WriteString("\x7fELF\x02\x01\x01" + string(make([]byte, 9)))
	for _, v := range []any{uint16(3), uint16(62), uint32(1), [3]uint64{}, uint32(0), uint16(64), uint16(56), uint16(0), uint16(64), uint16(0), uint16(0)} {
		if err := binary.Write(&elf, binary.LittleEndian, v); err != nil {
			b.Fatal(err)
		}
	}
	path := filepath.Join(b.TempDir(), "libvgpu.so")
	if err := os.WriteFile(path, elf.Bytes(), 0o644); err != nil {
		b.Fatal(err)
	}
	return path
}

// realContainers run on a Docker daemon, where there is one.
func realContainers(b *testing.B) scene {
	endpoint := dockertest.Real(b)
	return scene{
		config: map[string]any{"docker": map[string]any{"endpoint": endpoint}},
		task:   map[string]any{"image": dockertest.Image, "network_mode": "none", "args": []string{"sleep"}}, engine: endpoint,
	}
}

// simulatedContainers have slices of simulated cards, which are counted and noted like others.
func simulatedContainers(b *testing.B) scene {
	s := realContainers(b)
	s.share = func(serial int) []grant.Reservation {
		return []grant.Reservation{slice(accel.NVIDIA, accel.SimulatedPrefix+"GPU-", serial)}
	}
	return s
}

// BenchmarkStartTask is the time of StartTask of the built driver over gRPC, and for containers how much of it is not the
// engine's: beyond the two calls without which there is no container, and beyond all calls.
func BenchmarkStartTask(b *testing.B) {
	binary := built(b)
	for _, one := range []struct {
		name  string
		scene func(*testing.B) scene
	}{
		{"process", func(*testing.B) scene { return processes() }},
		{"process, bronze share", bronzeProcesses},
		{"container", containers},
		{"container, silver share", silverContainers},
		{"real container", realContainers},
		{"real container, simulated share", simulatedContainers},
	} {
		b.Run(one.name, func(b *testing.B) { startTasks(b, binary, one.scene(b)) })
	}
}

func startTasks(b *testing.B, binary string, s scene) {
	var engine *watcher
	if s.engine != "" {
		engine = watchEngine(b, s.engine)
		s.config["docker"].(map[string]any)["endpoint"] = engine.Host
	}
	n := newNode(b, binary, s.config)
	var took, beyond, outside []time.Duration
	for b.Loop() {
		cfg := n.task(s.task, s.reservations(0)...)
		began := time.Now()
		if err := n.start(b.Context(), cfg); err != nil {
			b.Fatal(err)
		}
		ended := time.Now()
		took = append(took, ended.Sub(began))
		if engine != nil {
			beyond = append(beyond, ended.Sub(began)-engine.within(began, ended, "POST /containers/create", "POST /containers/ID/start"))
			outside = append(outside, ended.Sub(began)-engine.within(began, ended))
		}
		n.destroy(cfg.GetId())
		if engine != nil {
			engine.forget()
		}
	}
	b.ReportMetric(0, "ns/op") // holds what is not of interest
	b.ReportMetric(milliseconds(quantile(took, 0.5)), "ms-median")
	b.ReportMetric(milliseconds(quantile(took, 0.99)), "ms-p99")
	if engine != nil {
		b.ReportMetric(milliseconds(quantile(beyond, 0.5)), "ms-beyond-create-and-start")
		b.ReportMetric(milliseconds(quantile(outside, 0.5)), "ms-beyond-all-calls")
	}
}

// BenchmarkStart100AtOnce starts a hundred tasks at the same moment on two cores, and fails when one does not start.
func BenchmarkStart100AtOnce(b *testing.B) {
	binary := built(b)
	for _, one := range []struct {
		name  string
		scene func(*testing.B) scene
	}{
		{"process, bronze share", bronzeProcesses},
		{"container, silver share", silverContainers},
		{"real container, simulated share", simulatedContainers},
	} {
		b.Run(one.name, func(b *testing.B) { startAtOnce(b, binary, one.scene(b), 100) })
	}
}

func startAtOnce(b *testing.B, binary string, s scene, tasks int) {
	n := newNode(b, binary, s.config)
	onTwoCores(b, n.pid())
	var all, each []time.Duration
	for b.Loop() {
		cfgs := make([]*driverpb.TaskConfig, tasks)
		for i := range cfgs {
			cfgs[i] = n.task(s.task, s.reservations(i)...)
		}
		began := time.Now()
		each = append(each, n.startAll(cfgs)...)
		all = append(all, time.Since(began))
		n.destroyAll(cfgs)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(quantile(all, 0.5)), "ms-all-median")
	b.ReportMetric(milliseconds(quantile(each, 0.5)), "ms-median")
	b.ReportMetric(milliseconds(slices.Max(each)), "ms-slowest")
}

// startAll starts all tasks at once and tells how long each took.
func (n *node) startAll(cfgs []*driverpb.TaskConfig) []time.Duration {
	n.b.Helper()
	took, errs := make([]time.Duration, len(cfgs)), make([]error, len(cfgs))
	var started sync.WaitGroup
	began := time.Now()
	for i, cfg := range cfgs {
		started.Go(func() {
			errs[i] = n.start(n.b.Context(), cfg)
			took[i] = time.Since(began)
		})
	}
	started.Wait()
	if err := errors.Join(errs...); err != nil {
		n.b.Fatal(err)
	}
	return took
}

func (n *node) destroyAll(cfgs []*driverpb.TaskConfig) {
	n.b.Helper()
	var gone sync.WaitGroup
	for _, cfg := range cfgs {
		gone.Go(func() { n.destroy(cfg.GetId()) })
	}
	gone.Wait()
}

// onTwoCores binds all threads of a process, and so what they start, to the first two cores of this one.
func onTwoCores(b *testing.B, pid int) {
	b.Helper()
	var allowed, two unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		b.Fatal(err)
	}
	for core := 0; two.Count() < min(2, allowed.Count()); core++ {
		if allowed.IsSet(core) {
			two.Set(core)
		}
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, t := range threads {
		if err := unix.SchedSetaffinity(int(number(b, t.Name())), &two); err != nil && !errors.Is(err, unix.ESRCH) {
			b.Fatal(err)
		}
	}
}

// idleWindow is how long the cost of doing nothing is watched: as long as the slowest of the driver's rounds.
const idleWindow = time.Minute

// BenchmarkIdle50Tasks is what the driver and its supervisors use while fifty tasks run and nobody asks for anything but
// what a Nomad client always asks: it waits for every task, and reads the statistics of each at its default interval of 1 s.
// "unread" leaves the statistics out. "least" is what a thread uses in the same minute that does the least anybody could who
// is asked for them: how much a wake-up costs differs between machines by more than the driver's own work.
func BenchmarkIdle50Tasks(b *testing.B) {
	binary := built(b)
	for _, one := range []struct {
		name  string
		scene func(*testing.B) scene
		stats time.Duration
	}{
		{"process, bronze share", bronzeProcesses, time.Second},
		{"container, silver share", silverContainers, time.Second},
		{"container, silver share, unread", silverContainers, 0},
		{"real container, simulated share", simulatedContainers, time.Second},
	} {
		b.Run(one.name, func(b *testing.B) { idle(b, binary, one.scene(b), 50, one.stats) })
	}
}

func idle(b *testing.B, binary string, s scene, tasks int, every time.Duration) {
	n := newNode(b, binary, s.config)
	cfgs := make([]*driverpb.TaskConfig, tasks)
	for i := range cfgs {
		cfgs[i] = n.task(s.task, s.reservations(i)...)
	}
	n.startAll(cfgs)
	defer n.destroyAll(cfgs)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	for _, cfg := range cfgs {
		go n.client.WaitTask(ctx, &driverpb.WaitTaskRequest{TaskId: cfg.GetId()}) //nolint:errcheck // ends with the benchmark
		if every == 0 {
			continue
		}
		stats, err := n.client.TaskStats(ctx, &driverpb.TaskStatsRequest{TaskId: cfg.GetId(), CollectionInterval: durationpb.New(every)})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := stats.Recv(); err != nil {
			b.Fatal(err)
		}
		go drain(stats.Recv)
	}
	supervisors := n.supervisors()
	if len(supervisors) != tasks {
		b.Fatalf("%d supervisors, want one for each of %d tasks", len(supervisors), tasks)
	}
	use := func() (driver, theirs time.Duration) {
		for _, pid := range supervisors {
			theirs += processor(b, pid)
		}
		return processor(b, n.pid()), theirs
	}
	var window time.Duration
	least := watchLeast(ctx, supervisors)
	driver, theirs := use()
	leastBefore := least.Load()
	for b.Loop() {
		time.Sleep(idleWindow)
		window += idleWindow
	}
	driverAfter, theirsAfter := use()
	leastAfter := least.Load()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(100*(driverAfter-driver).Seconds()/window.Seconds(), "%core-driver")
	b.ReportMetric(100*(theirsAfter-theirs).Seconds()/window.Seconds(), "%core-supervisors")
	b.ReportMetric(100*time.Duration(leastAfter-leastBefore).Seconds()/window.Seconds(), "%core-least")
	b.ReportMetric(memoryMiB(b, n.pid(), "status", "VmRSS"), "MiB-rss-driver")
	b.ReportMetric(memoryMiB(b, n.pid(), "status", "VmHWM"), "MiB-peak-driver")
	var rss, own []float64
	for _, pid := range supervisors {
		rss = append(rss, memoryMiB(b, pid, "status", "VmRSS"))
		own = append(own, memoryMiB(b, pid, "smaps_rollup", "Private_Dirty"))
	}
	slices.Sort(rss)
	slices.Sort(own)
	b.ReportMetric(rss[tasks/2], "MiB-rss-supervisor")
	b.ReportMetric(own[tasks/2], "MiB-own-supervisor")
}

// watchLeast starts a thread that wakes every second and reads one file of each process, and gives the nanoseconds of
// processor time that it has used. It ends with the context.
func watchLeast(ctx context.Context, pids []int) *atomic.Int64 {
	var used atomic.Int64
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with it
		buffer := make([]byte, 4096)
		for ctx.Err() == nil {
			for _, pid := range pids {
				if fd, err := unix.Open(fmt.Sprintf("/proc/%d/stat", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
					unix.Read(fd, buffer) //nolint:errcheck // only its cost counts
					unix.Close(fd)        //nolint:errcheck // it was only read
				}
			}
			var now unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err == nil {
				used.Store(now.Nano())
			}
			unix.Nanosleep(&unix.Timespec{Sec: 1}, nil) //nolint:errcheck // woken early it reads once more
		}
	}()
	return &used
}

// quantile is the value below which this part of all lie.
func quantile(all []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
