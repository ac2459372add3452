package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/brand/brandtest"
	"github.com/heteroflow/heteroflow/e2e/cluster"
)

// shareBox is a machine whose cards can be divided: makers' tools that keep what they made, and the files that backends look
// for. It has /usr/bin, /usr/local and a part of /sys of its own, in a mount namespace that the agent runs in, so that several
// stand beside each other and nothing of the host is changed.
type shareBox struct {
	root   string // what lies over the host's files; the device plugin's root
	state  string // of the tools
	claims string // see e2e/probe
	tool   string // e2e/faketool
	mig    string // UUID of the card in MIG mode
	flat   []string
	enter  []string
	totals []cardTotal
}

// cardTotal is how much memory a card has.
type cardTotal struct {
	uuid string
	mib  int64
}

// Cards of a shareBox by brand: 3 of NVIDIA by fakes, the others as the makers' tools showed them elsewhere, or written to fit
// the fakes that divide them.
const shareCards = 3 + 2 + 1 + 2 + 8 + 1 + 2

// newShareBox makes the n-th machine of this process.
func newShareBox(t *testing.T, tool string, n int) *shareBox {
	t.Helper()
	uuid := func(i int) string { return fmt.Sprintf("GPU-%08x-%04x-4000-8000-00000000000%d", os.Getpid(), n, i) }
	b := &shareBox{root: t.TempDir(), state: t.TempDir(), claims: t.TempDir(), tool: tool, mig: uuid(1), flat: []string{uuid(2), uuid(3)}}
	if err := os.Chmod(b.claims, 0o777); err != nil {
		t.Fatal(err)
	}
	cards, err := json.Marshal(map[string]string{"mig": b.mig, "first": b.flat[0], "second": b.flat[1]})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(b.state, "nvidia.json"), string(cards), 0o600)
	if err := os.MkdirAll(filepath.Join(b.state, "mps"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(tool, filepath.Join(b.state, "mps", "nvidia-cuda-mps-control")); err != nil {
		t.Fatal(err)
	}
	b.bus(t)
	b.players(t)
	for _, name := range []string{
		"nvidia-smi", "nvidia-cuda-mps-control", "npu-smi", "xpu-container-cli", "/usr/bin/xpu-container-runtime",
		"/usr/local/libexec/heteroflow/cambricon-smlu", "/usr/local/libexec/heteroflow/mthreads-sgpu",
	} {
		path := name
		if !filepath.IsAbs(name) {
			path = filepath.Join("/usr/bin", name)
		}
		write(t, filepath.Join(b.root, path), fmt.Sprintf("#!/bin/sh\nexec %s %s %s \"$@\"\n", tool, b.state, name), 0o755)
	}
	b.files(t)
	t.Cleanup(func() { // after the cluster has ended: what a failed test leaves
		for _, d := range b.thingsLike(t, "MPS daemon ") {
			if pid, err := strconv.Atoi(strings.Fields(d)[2]); err == nil {
				syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it may have ended
			}
		}
	})
	b.own(t)
	return b
}

func write(t testing.TB, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	// A process forked while a program is open for writing would keep it from being started for a moment.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// bus puts the cards where the device plugin looks whether they are there.
func (b *shareBox) bus(t *testing.T) {
	t.Helper()
	for _, on := range []struct{ vendor, device, driver, addresses string }{
		{"10de", "2321", "nvidia", "01"},
		{"10de", "26b9", "nvidia", "02 03"},
		{"1ed5", "0400", "mtgpu", "2a 3a"},
		{"19e5", "d802", "devdrv_device_driver", "5a"},
		{"cabc", "0370", "cambricon-drv", "39 3d"},
		{"1d22", "3685", "kunlun", "52 55 63 66 9a 9b aa ab"},
		{"1002", "74a1", "amdgpu", "0a"},
		{"1d94", "6210", "hycu", "c1 c2"},
	} {
		for bus := range strings.FieldsSeq(on.addresses) {
			if on.vendor == "1d94" { // the kernel's names of its nodes, see shareNodes
				number := bus[1:]
				for _, name := range []string{"card20" + number, "renderD20" + number} {
					write(t, filepath.Join(b.root, "sys/bus/pci/devices/0000:"+bus+":00.0/drm", name, "uevent"), "", 0o644)
				}
			}
			brandtest.Bus(t, b.root, "0000:"+bus+":00.0", on.vendor, on.device, on.driver, "01")
		}
	}
}

// players are the tools that only show cards.
func (b *shareBox) players(t *testing.T) {
	t.Helper()
	bin := filepath.Join(b.root, "usr/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, answers := range map[string]map[string]string{
		"mthreads-gmi": {
			"--query --json": recorded(t, "mthreads/testdata/query-s5000-first-two.json"),
			"":               recorded(t, "mthreads/testdata/table-s5000-2.3.2-first-two.txt"),
		},
		"xpu-smi": {"": recorded(t, "kunlunxin/testdata/table-p800-oam-5.0.21.26.txt")},
		"cnmon":   {"": recorded(t, "cambricon/testdata/table-mlu370x8-5.10.13.txt")},
		"hy-smi": {
			"--show* --json": `{"card0": {"Card Series": "K100_AI", "Unique ID": "0x2f1e3a", "PCI Bus": "0000:C1:00.0", "VRAM Total Memory (B)": "34342961152", "VRAM Total Used Memory (B)": "0"},
 "card1": {"Card Series": "K100_AI", "Unique ID": "0x2f1e3b", "PCI Bus": "0000:C2:00.0", "VRAM Total Memory (B)": "34342961152", "VRAM Total Used Memory (B)": "0"}}`,
		},
	} {
		if name == "hy-smi" {
			bin = filepath.Join(b.root, "players")
			if err := os.MkdirAll(bin, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		play := map[string]brandtest.Answer{}
		for args, text := range answers {
			play[args] = brandtest.Answer{Text: text}
		}
		brandtest.Install(t, bin, name).Play(t, play)
		bin = filepath.Join(b.root, "usr/bin")
	}
	write(t, filepath.Join(bin, "hy-smi"), fmt.Sprintf(`#!/bin/sh
case "$1" in
virtual | --showdriverversion) exec %s %s hy-smi "$@" ;;
esac
exec %s "$@"
`, b.tool, b.state, filepath.Join(b.root, "players/hy-smi")), 0o755)
}

// files are what backends look for beside tools.
func (b *shareBox) files(t *testing.T) {
	t.Helper()
	// HAMi's library for NVIDIA must be one that loads: any of this machine.
	libraries, err := filepath.Glob("/lib*/*-linux-gnu/libm.so.6")
	if more, moreErr := filepath.Glob("/lib64/libm.so.6"); moreErr == nil {
		libraries = append(libraries, more...)
	}
	if err != nil || len(libraries) == 0 {
		t.Fatalf("no shared library on this machine to stand in for HAMi's: %v", err)
	}
	library, err := os.ReadFile(libraries[0])
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		"usr/local/vgpu/libvgpu.so":           string(library),
		"usr/local/vgpu/libamvgpu.so":         "library",
		"usr/local/hami-vnpu-core/libvnpu.so": "library",
		"sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 1216\nsimd_per_cu 4\narray_count 32\nsimd_arrays_per_engine 1\nnum_xcc 8\n" +
			"gfx_target_version 90402\nvendor_id 4098\ndevice_id 29857\nlocation_id 2560\ndomain 0\nunique_id 81985529216486895\n",
		"sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 206141652992\n",
	} {
		write(t, filepath.Join(b.root, path), text, 0o644)
	}
}

// own makes the mount namespace, which lives as long as the test.
func (b *shareBox) own(t *testing.T) {
	t.Helper()
	var script strings.Builder
	script.WriteString("set -e\n")
	for _, dir := range []string{"/usr/bin", "/usr/local", "/sys/class", "/sys/bus/pci/devices"} {
		fmt.Fprintf(&script, "mount -t overlay overlay -o lowerdir=%s:%s %s\n", filepath.Join(b.root, dir), dir, dir)
	}
	script.WriteString("echo ready\nexec cat\n")
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", script.String())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var problem strings.Builder
	cmd.Stderr = &problem
	if err := cmd.Start(); err != nil {
		t.Skipf("no machine of its own for each engine: %v", err)
	}
	t.Cleanup(func() {
		// Without its input it ends, and the namespace with the last that is in it.
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Logf("end the namespace: %v", err)
		}
	})
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(out, ready); err != nil {
		t.Skipf("no machine of its own for each engine, which needs root and overlayfs: %s", strings.TrimSpace(problem.String()))
	}
	b.enter = []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", cmd.Process.Pid), "--"}
}

// things are what the tools have made, and MPS daemons.
func (b *shareBox) things(t testing.TB) []string {
	t.Helper()
	out, err := b.says("things")
	if err != nil {
		t.Fatalf("what the tools have made: %v", err)
	}
	return slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool { return line == "" })
}

// says is what a tool prints.
func (b *shareBox) says(args ...string) (string, error) {
	out, err := exec.Command(b.tool, append([]string{b.state}, args...)...).Output()
	return string(out), err
}

// thingsLike are the things that begin so.
func (b *shareBox) thingsLike(t testing.TB, prefix string) []string {
	t.Helper()
	return slices.DeleteFunc(b.things(t), func(thing string) bool { return !strings.HasPrefix(thing, prefix) })
}

// fault makes a call go wrong, see e2e/faketool. It takes the place of one that has not happened.
func (b *shareBox) fault(t testing.TB, kind string, before int, call string) {
	t.Helper()
	next := filepath.Join(b.state, "fault.next")
	if err := os.RemoveAll(filepath.Join(b.state, "fault.happened")); err != nil {
		t.Fatal(err)
	}
	write(t, next, fmt.Sprintf("%s\n%d\n%s\n", kind, before, call), 0o600)
	if err := os.Rename(next, filepath.Join(b.state, "fault")); err != nil {
		t.Fatal(err)
	}
}

func (b *shareBox) faultHappened() error {
	_, err := os.Stat(filepath.Join(b.state, "fault.happened"))
	return err
}

func (b *shareBox) noFault(t testing.TB) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(b.state, "fault")); err != nil {
		t.Fatal(err)
	}
}

// options of a cluster on this machine.
func (b *shareBox) options(o cluster.Options) cluster.Options {
	o.Root, o.Enter, o.Period = b.root, b.enter, "300ms"
	// What is played of these brands' tools does not tell the processes on a card, without which no intent changes its form.
	forms := ""
	for _, brand := range []string{"mthreads", "hygon", "amd"} {
		forms += fmt.Sprintf("\n      %q = \"shared\"", brand+"/*")
	}
	o.Device = fmt.Sprintf("recovery_hold = \"1s\"\n    forms = {\n      %q = \"mig\"%s\n    }", b.mig, forms)
	// What Nomad was killed over before it noted it, and what it lost when the driver died twice, is nobody's for so long.
	// hami makes no shares for processes: those get theirs by mps.
	o.Driver = "orphan_after = \"20s\"\n    share {\n      nvidia = [\"hami\", \"mps\"]\n      ascend = [\"vnpu\", \"hami\"]\n    }"
	o.Runtimes = "runtimes {\n        nvidia = \"runc\"\n        ascend = \"runc\"\n        mthreads = \"runc\"\n        amd = \"runc\"\n      }"
	return o
}

// entry is a part of what the driver's ledger says of a share.
type entry struct {
	Backend, State string
	Ask            struct {
		TaskID    string `json:"task_id"`
		AllocID   string `json:"alloc_id"`
		MemoryMiB int64  `json:"memory_mib"`
		Card      struct {
			UUID string `json:"uuid"`
		} `json:"card"`
	}
}

// ledger are the driver's entries by their files.
func (s *suite) ledger() ([]entry, error) {
	paths, err := filepath.Glob(filepath.Join(s.Dir, "state", "shares", "*.json"))
	if err != nil {
		return nil, err
	}
	var out []entry
	for _, path := range paths {
		body, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var e entry
		if err == nil {
			err = json.Unmarshal(body, &e)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

// sharesGone checks that nothing is made and nothing is noted any more.
func (s *suite) sharesGone(b *shareBox, within time.Duration) {
	s.t.Helper()
	s.Eventually(within, "every share is given back", func() error {
		if things := b.things(s.t); len(things) > 0 {
			return fmt.Errorf("the tools still have %q", things)
		}
		entries, err := s.ledger()
		if err == nil && len(entries) > 0 {
			err = fmt.Errorf("the ledger has %+v", entries)
		}
		if err != nil {
			return err
		}
		return s.nothingNoted()
	})
	if body, err := os.ReadFile(filepath.Join(b.claims, "violations")); err == nil {
		s.t.Errorf("two owners:\n%s", body)
	}
}

// nothingNoted checks that no backend keeps a note, a socket or a folder of a share.
func (s *suite) nothingNoted() error {
	return filepath.WalkDir(filepath.Join(s.Dir, "state", "shares"), func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case strings.HasPrefix(e.Name(), "hf") && len(e.Name()) >= len("hf0123456789abcdef"), e.Name() == "control":
			return fmt.Errorf("%s is left", path)
		}
		return nil
	})
}
