package hami

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/grant"
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/maker"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

const stateDir = "/var/lib/heteroflow/shares"

func asked(task, uuid string, mib uint64, pct int) share.Ask {
	return share.Ask{
		ID: share.NewID(task, accel.NVIDIA, uuid), TaskID: task, Vendor: accel.NVIDIA, Form: accel.Shared, Of: 1, Container: true,
		Card: grant.Card{UUID: uuid, MemoryMiB: 46068, Units: 1}, MemoryMiB: mib, ComputePct: pct,
	}
}

// library is the least that is a shared library, with words that tell versions apart.
func library(t testing.TB, version string, kind elf.Type) []byte {
	t.Helper()
	var out bytes.Buffer
	h := elf.Header64{Type: uint16(kind), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT), Ehsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	if err := binary.Write(&out, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	out.WriteString(version)
	return out.Bytes()
}

// install puts a library on the machine as a package manager does: by renaming.
func install(t testing.TB, root string, body []byte) {
	t.Helper()
	path := filepath.Join(root, DefaultLibrary)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", body, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func host(t testing.TB) share.Host {
	t.Helper()
	h := share.Host{Tool: sharetest.NewTools(nil), Root: t.TempDir(), Dir: stateDir}
	install(t, h.Root, library(t, "one", elf.ET_DYN))
	return h
}

func prepare(t testing.TB, b *Backend, a share.Ask) share.Setup {
	t.Helper()
	s, err := b.Prepare(t.Context(), a, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBackend_PassesTheSuite(t *testing.T) {
	t.Parallel()
	sharetest.Run(t, sharetest.Suite{
		Machine: func(t testing.TB) sharetest.Machine {
			h := host(t)
			return sharetest.Machine{Tool: h.Tool, Root: h.Root}
		},
		New:      func(h share.Host) share.Backend { return New(h, Options{}) },
		Asks:     []share.Ask{asked("a/t/1", "GPU-1", 10240, 30), asked("b/t/2", "GPU-1", 20480, 0)},
		Toolless: true,
	})
}

func TestPrepare_Setup(t *testing.T) {
	t.Parallel()
	h := host(t)
	b, a := New(h, Options{}), asked("a", "GPU-1", 10240, 30)
	setup := prepare(t, b, a)
	at := func(name string) string { return stateDir + "/nvidia/hami/shares/" + string(a.ID) + "/" + name }
	want := share.Setup{
		Env: map[string]string{
			"CUDA_DEVICE_MEMORY_LIMIT": "10240m", "CUDA_DEVICE_MEMORY_LIMIT_0": "10240m", "CUDA_DEVICE_SM_LIMIT": "30",
			"GPU_CORE_UTILIZATION_POLICY": "force", "CUDA_REDIRECT": "/usr/local/vgpu/libvgpu.so",
			"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/cache/region.cache",
		},
		Mounts: []share.Mount{
			{Source: at("libvgpu.so"), Target: "/usr/local/vgpu/libvgpu.so", ReadOnly: true},
			{Source: at("ld.so.preload"), Target: "/etc/ld.so.preload", ReadOnly: true},
			{Source: at("override.env"), Target: "/overrideEnv", ReadOnly: true},
			{Source: at("profile.sh"), Target: "/etc/profile.d/00-heteroflow-share.sh", ReadOnly: true},
			{Source: at("cache"), Target: "/usr/local/vgpu/cache"},
			{Source: at("cache/region.cache"), Target: "/tmp/cudevshr.cache"},
			{Source: at("lock"), Target: "/tmp/vgpulock"},
		},
	}
	if diff := cmp.Diff(want, setup); diff != "" {
		t.Errorf("setup (-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{
		"ld.so.preload": "/usr/local/vgpu/libvgpu.so\n",
		"override.env": "CUDA_DEVICE_MEMORY_LIMIT=10240m\nCUDA_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/cache/region.cache\n" +
			"CUDA_DEVICE_SM_LIMIT=30\nCUDA_REDIRECT=/usr/local/vgpu/libvgpu.so\nGPU_CORE_UTILIZATION_POLICY=force\n",
		"profile.sh": "export CUDA_DEVICE_MEMORY_LIMIT='10240m'\nexport CUDA_DEVICE_MEMORY_SHARED_CACHE='/usr/local/vgpu/cache/region.cache'\n" +
			"export CUDA_DEVICE_SM_LIMIT='30'\nexport CUDA_REDIRECT='/usr/local/vgpu/libvgpu.so'\nexport GPU_CORE_UTILIZATION_POLICY='force'\n",
		"cache/region.cache": "",
	} {
		if got, err := os.ReadFile(h.Path(at(name))); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for name, want := range map[string]os.FileMode{
		"lock": 0o777 | os.ModeDir, "cache": 0o777 | os.ModeDir, "cache/region.cache": 0o666, "ld.so.preload": 0o644, "libvgpu.so": 0o755,
	} {
		if info, err := os.Stat(h.Path(at(name))); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, want %v (%v)", name, info.Mode(), want, err)
		}
	}
	for _, m := range setup.Mounts { // no mount of a task is another's
		if !strings.Contains(m.Source, string(a.ID)) {
			t.Errorf("%s is not the share's own", m.Source)
		}
	}
}

func TestPrepare_NoCapAndAllCards(t *testing.T) {
	t.Parallel()
	b := New(host(t), Options{})
	for _, pct := range []int{0, 100} {
		setup := prepare(t, b, asked("a", "GPU-1", 1024, pct))
		if _, set := setup.Env[envSM]; set {
			t.Errorf("%d %%: %v", pct, setup.Env)
		}
	}
}

// TestUpgrade_ReachesNewTasksOnly is for features M37 and M41: the file that a task has mapped is never written nor replaced.
func TestUpgrade_ReachesNewTasksOnly(t *testing.T) {
	t.Parallel()
	h := host(t)
	b, a := New(h, Options{}), asked("a", "GPU-1", 1024, 0)
	mounted := h.Path(prepare(t, b, a).Mounts[0].Source)
	before, err := os.Stat(mounted)
	if err != nil {
		t.Fatal(err)
	}
	install(t, h.Root, library(t, "two", elf.ET_DYN))
	region := h.Path(b.folder.Path(a.ID, dirCache, fileRegion))
	if err := os.WriteFile(region, []byte("counts"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*Backend{b, New(h, Options{})} {
		prepare(t, b, a)
		if err := b.Reconcile(t.Context(), map[share.ID]share.Ask{a.ID: a}); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.Stat(mounted)
	if err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Errorf("the library of a task that runs was replaced: %v", err)
	}
	if counts, err := os.ReadFile(region); err != nil || string(counts) != "counts" {
		t.Errorf("the region of a task that runs was replaced: %q, %v", counts, err)
	}
	fresh, err := os.ReadFile(h.Path(prepare(t, b, asked("b", "GPU-1", 1024, 0)).Mounts[0].Source))
	if err != nil || !bytes.HasSuffix(fresh, []byte("two")) {
		t.Errorf("a new task got %q, %v", fresh, err)
	}
}

func TestPrepare_Events(t *testing.T) {
	t.Parallel()
	b, a := New(host(t), Options{}), asked("a", "GPU-1", 10240, 30)
	var said []string
	for range 2 {
		if _, err := b.Prepare(t.Context(), a, func(text string) { said = append(said, text) }); err != nil {
			t.Fatal(err)
		}
	}
	if len(said) != 1 || !strings.HasPrefix(said[0], "share of GPU-1: 10 GiB, 30 % of compute, bound by HAMi-core ") {
		t.Errorf("events %q", said)
	}
}

func TestPrepare_Refusals(t *testing.T) {
	t.Parallel()
	h := host(t)
	process := asked("a", "GPU-1", 1024, 0)
	process.Container = false
	if _, err := New(h, Options{}).Prepare(t.Context(), process, func(string) {}); !errors.Is(err, maker.ErrContainerOnly) {
		t.Errorf("a process of the host: %v", err)
	}
	if _, err := New(h, Options{}).Prepare(t.Context(), asked("a", "GPU-1", 0, 0), func(string) {}); err == nil {
		t.Error("a share without memory is made")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := New(h, Options{}).Prepare(ended, asked("a", "GPU-1", 1, 0), func(string) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller has gone: %v", err)
	}
	_, err := New(h, Options{Library: "/nowhere.so"}).Prepare(t.Context(), asked("a", "GPU-1", 1, 0), func(string) {})
	if err == nil {
		t.Error("a share without the library is made")
	}
	if ids, err := New(h, Options{}).folder.IDs(); err != nil || len(ids) > 0 {
		t.Errorf("left behind: %v, %v", ids, err)
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		body []byte
		want string
	}{
		"it is there":  {body: library(t, "one", elf.ET_DYN)},
		"it is absent": {want: "HAMi's library is not at /usr/local/vgpu/libvgpu.so: copy libvgpu.so of Project-HAMi/HAMi-core there, or write its path as hami_library"},
		"a program":    {body: library(t, "one", elf.ET_EXEC), want: "is no shared library (ET_EXEC)"},
		"half of it":   {body: library(t, "one", elf.ET_DYN)[:20], want: "cannot be loaded"},
		"a text":       {body: []byte("404: Not Found"), want: "cannot be loaded"},
	} {
		h := share.Host{Root: t.TempDir(), Dir: stateDir}
		if c.body != nil {
			install(t, h.Root, c.body)
		}
		err := New(h, Options{}).Probe(t.Context())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

func TestSelfTest(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		answer share.Output
		want   string
	}{
		"it loads": {},
		"it is for another machine": {
			share.Output{Stderr: "ERROR: ld.so: object '/usr/local/vgpu/libvgpu.so' from LD_PRELOAD cannot be preloaded (wrong ELF class): ignored.\n"},
			"cannot be loaded on this node: status 0: ERROR: ld.so",
		},
		"it ends the program": {share.Output{ExitCode: 127, Stderr: "true: symbol lookup error\n"}, "status 127"},
	} {
		tools := sharetest.NewTools(map[string]func([]string) share.Output{"env": func([]string) share.Output { return c.answer }})
		err := New(share.Host{Tool: tools, Root: t.TempDir(), Dir: stateDir}, Options{}).SelfTest(t.Context())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", what, err)
		}
		if calls := tools.Calls(); len(calls) != 1 || calls[0] != "env LD_PRELOAD=/usr/local/vgpu/libvgpu.so true" {
			t.Errorf("%s: calls %q", what, calls)
		}
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	b := New(host(t), Options{})
	card := func(n int, mib uint64, pct int) share.Setup {
		a := asked("a", []string{"GPU-0", "GPU-1", "GPU-2"}[n], mib, pct)
		a.Position, a.Of = n, 3
		return prepare(t, b, a)
	}
	one, two, three := card(0, 4096, 50), card(1, 2048, 50), card(2, 8192, 50)
	got, err := b.Join([]share.Setup{one, two, three})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"CUDA_DEVICE_MEMORY_LIMIT": "2048m", "CUDA_DEVICE_MEMORY_LIMIT_0": "2048m", "CUDA_DEVICE_MEMORY_LIMIT_1": "2048m",
		"CUDA_DEVICE_MEMORY_LIMIT_2": "2048m", "CUDA_DEVICE_SM_LIMIT": "50", "CUDA_VISIBLE_DEVICES": "0,1,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
	} {
		if got.Env[name] != want {
			t.Errorf("%s=%q, want %q", name, got.Env[name], want)
		}
	}
	if diff := cmp.Diff(two.Mounts, got.Mounts); diff != "" {
		t.Errorf("mounts are not the smallest share's (-want +got):\n%s", diff)
	}
	if _, err := b.Join([]share.Setup{one, card(2, 8192, 25)}); err == nil || !strings.Contains(err.Error(), "one for all cards") {
		t.Errorf("two caps: %v", err)
	}
}

// A task may put what it likes into its cache; when its start is repeated, nothing of the host is reached by that.
func TestPrepare_FollowsNoLinkOfTheTask(t *testing.T) {
	t.Parallel()
	h := host(t)
	b, a := New(h, Options{}), asked("a", "GPU-1", 10240, 30)
	prepare(t, b, a)
	secret := filepath.Join(t.TempDir(), "shadow")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	region := h.Path(stateDir, "nvidia/hami/shares", string(a.ID), "cache/region.cache")
	for name, plant := range map[string]func() error{
		"a link":            func() error { return os.Symlink(secret, region) },
		"a link to nowhere": func() error { return os.Symlink(secret+"-new", region) },
		"a folder":          func() error { return os.MkdirAll(filepath.Join(region, "x"), 0o755) },
	} {
		if err := errors.Join(os.RemoveAll(region), plant()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Prepare(t.Context(), a, func(string) {}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Lstat(region); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: the region is %v, %v", name, info, err)
		}
	}
	if info, err := os.Stat(secret); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the host's file is open to all: %v, %v", info, err)
	}
	if _, err := os.Stat(secret + "-new"); err == nil {
		t.Error("a file of the host was made")
	}
}
