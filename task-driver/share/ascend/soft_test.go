package ascend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/sharetest"
)

func withLibrary(t testing.TB, root, version string) {
	t.Helper()
	path := filepath.Join(root, library)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(version), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestSlices_PassTheSuite(t *testing.T) {
	t.Parallel()
	sharetest.Run(t, sharetest.Suite{
		Machine: func(t testing.TB) sharetest.Machine {
			root := t.TempDir()
			withLibrary(t, root, "one")
			return sharetest.Machine{Tool: sharetest.NewTools(nil), Root: root, Things: func() []string {
				regions, err := filepath.Glob(filepath.Join(root, "var/lib/heteroflow/shares/ascend/hami/regions/*"))
				if err != nil {
					t.Fatal(err)
				}
				return regions
			}}
		},
		New:      func(h share.Host) share.Backend { return NewSlices(h) },
		Asks:     []share.Ask{ask("a/t/1", 10240), ask("b/t/2", 20480)},
		Toolless: true,
	})
}

func TestSlices_SetupAndTheLibraryOfATaskThatRuns(t *testing.T) {
	t.Parallel()
	h := share.Host{Root: t.TempDir(), Dir: "/state", Tool: sharetest.NewTools(nil)}
	withLibrary(t, h.Root, "one")
	b := NewSlices(h)
	a := ask("a", 10240)
	a.ComputePct = 30
	got, err := b.Prepare(t.Context(), a, none)
	if err != nil {
		t.Fatal(err)
	}
	own := "/state/ascend/hami/shares/" + string(a.ID)
	want := share.Setup{
		Env: map[string]string{
			"NPU_MEM_QUOTA": "10240", "NPU_PRIORITY": "30", "ASCEND_RT_VISIBLE_DEVICES": "0",
			"NPU_GLOBAL_SHM_PATH": "/hami-shared-region/3_global_registry", "NPU_LOCAL_SHM_PATH": "/hami-vnpu-shmem/vnpu_local_shmem",
		},
		Mounts: []share.Mount{
			{Source: own + "/core", Target: "/hami-vnpu-core", ReadOnly: true},
			{Source: own + "/ld.so.preload", Target: "/etc/ld.so.preload", ReadOnly: true},
			{Source: own + "/shmem", Target: "/hami-vnpu-shmem"},
			{Source: "/state/ascend/hami/regions/davinci3", Target: "/hami-shared-region"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("setup (-want +got):\n%s", diff)
	}
	withLibrary(t, h.Root, "two")
	if _, err := b.Prepare(t.Context(), a, none); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"core/libvnpu.so": "one", "ld.so.preload": "/hami-vnpu-core/libvnpu.so\n"} {
		if body, err := os.ReadFile(h.Path(own, file)); err != nil || string(body) != want {
			t.Errorf("%s is %q, %v, want %q", file, body, err, want)
		}
	}
}

func TestSlices_Refusals(t *testing.T) {
	t.Parallel()
	h := share.Host{Root: t.TempDir(), Dir: "/state", Tool: sharetest.NewTools(nil)}
	b := NewSlices(h)
	if err := b.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), library) {
		t.Errorf("without the library: %v", err)
	}
	two, process := ask("a", 1024), ask("a", 1024)
	two.Of, process.Container = 2, false
	for want, a := range map[string]share.Ask{"binds one card": two, "run the task in a container": process, "keep " + library: ask("a", 1024)} {
		if _, err := b.Prepare(t.Context(), a, none); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// A chip is divided by one backend at a time.
func TestSlices_AndVirtualNPUsNotOnOneChip(t *testing.T) {
	t.Parallel()
	f, h := machine(t)
	withLibrary(t, h.Root, "one")
	hard, soft := NewVNPUs(h), NewSlices(h)
	if _, err := hard.Prepare(t.Context(), ask("a", 16384), none); err != nil {
		t.Fatal(err)
	}
	if _, err := soft.Prepare(t.Context(), ask("b", 1024), none); err == nil || !strings.Contains(err.Error(), "divided in virtual NPUs") {
		t.Errorf("a slice of a divided chip: %v", err)
	}
	if err := hard.Release(t.Context(), ask("a", 0).ID); err != nil {
		t.Fatal(err)
	}
	if _, err := soft.Prepare(t.Context(), ask("b", 1024), none); err != nil {
		t.Fatal(err)
	}
	if _, err := hard.Prepare(t.Context(), ask("a", 16384), none); err == nil || !strings.Contains(err.Error(), "shared in slices") {
		t.Errorf("a virtual NPU of a sliced chip: %v", err)
	}
	if left := f.Things(); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}
