package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const id = "4fd0b5ac8f30a02b9ed47d4db5d4b6a8dcbf2b86a0e3d7e5a9e1f3c2d1b0a9f8"

// machine writes files below a folder.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, body := range files {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(body), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// The texts are of a container that a Docker 20.10 runs on Linux 6.18 with version 1, shortened.
func version1(t *testing.T) string {
	return machine(t, map[string]string{
		"proc/77/cgroup": "9:name=systemd:/docker/" + id + "\n4:memory:/docker/" + id + "\n2:cpu,cpuacct:/docker/" + id + "\n0::/\n",
		"sys/cpuacct/docker/" + id + "/cpuacct.usage":                 "2150034567\n",
		"sys/cpuacct/docker/" + id + "/cpuacct.stat":                  "user 150\nsystem 64\n",
		"sys/cpu/docker/" + id + "/cpu.stat":                          "nr_periods 7\nnr_throttled 3\nthrottled_time 41000000\nnr_bursts 0\n",
		"sys/memory/docker/" + id + "/memory.stat":                    "cache 135168\nrss 1216512\nrss_huge 0\nmapped_file 0\nswap 4096\ntotal_cache 9\ntotal_rss 9\n",
		"sys/memory/docker/" + id + "/memory.usage_in_bytes":          "1884160\n",
		"sys/memory/docker/" + id + "/memory.max_usage_in_bytes":      "7372800\n",
		"sys/memory/docker/" + id + "/memory.kmem.usage_in_bytes":     "442368\n",
		"sys/memory/docker/" + id + "/memory.kmem.max_usage_in_bytes": "450560\n",
	})
}

func version2(t *testing.T, more map[string]string) string {
	dir := "sys/system.slice/docker-" + id + ".scope/"
	files := map[string]string{
		"proc/77/cgroup":       "0::/system.slice/docker-" + id + ".scope\n",
		dir + "cpu.stat":       "usage_usec 2150034\nuser_usec 1500000\nsystem_usec 650034\nnr_periods 7\nnr_throttled 3\nthrottled_usec 41000\n",
		dir + "memory.current": "1884160\n",
		dir + "memory.stat":    "anon 1216512\nfile 135168\nkernel_stack 16384\n",
	}
	for name, body := range more {
		files[dir+name] = body
	}
	return machine(t, files)
}

func find(root string) (Group, error) {
	return Of(filepath.Join(root, "sys"), filepath.Join(root, "proc"), 77, id)
}

func n(v uint64) *uint64 { return &v }

func TestRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		root string
		want Use
	}{
		"version 1": {version1(t), Use{
			CPUTotalNS: 2150034567, CPUUserNS: 1500000000, CPUSysNS: 640000000, ThrottledPeriods: 3, ThrottledNS: 41000000,
			MemoryUsage: 1884160, MemoryMax: n(7372800), MemoryRSS: n(1216512), MemoryCache: n(135168), MemorySwap: n(4096), KernelUsage: n(442368), KernelMax: n(450560),
		}},
		"version 2 of an old kernel": {version2(t, nil), Use{
			CPUTotalNS: 2150034000, CPUUserNS: 1500000000, CPUSysNS: 650034000, ThrottledPeriods: 3, ThrottledNS: 41000000,
			MemoryUsage: 1884160, MemoryRSS: n(1216512), MemoryCache: n(135168),
		}},
		"version 2": {version2(t, map[string]string{"memory.stat": "anon 1\nfile 2\nkernel 3\n", "memory.peak": "4\n", "memory.swap.current": "0\n"}), Use{
			CPUTotalNS: 2150034000, CPUUserNS: 1500000000, CPUSysNS: 650034000, ThrottledPeriods: 3, ThrottledNS: 41000000,
			MemoryUsage: 1884160, MemoryMax: n(4), MemoryRSS: n(1), MemoryCache: n(2), MemorySwap: n(0), KernelUsage: n(3),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, err := find(c.root)
			if err != nil {
				t.Fatal(err)
			}
			got, err := g.Read()
			if err != nil || got.At.IsZero() {
				t.Fatalf("read %+v, %v", got, err)
			}
			if diff := cmp.Diff(c.want, got, cmpopts.IgnoreFields(Use{}, "At")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if err := os.RemoveAll(filepath.Join(c.root, "sys")); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Read(); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("of a group that is gone: %v", err)
			}
		})
	}
}

func TestOf_Refuses(t *testing.T) {
	t.Parallel()
	elsewhere := version1(t)
	if _, err := Of(filepath.Join(elsewhere, "sys"), filepath.Join(elsewhere, "proc"), 77, strings.Repeat("0", 64)); !errors.Is(err, ErrNotOurs) {
		t.Errorf("of a process of somebody else: %v", err)
	}
	if _, err := Of(filepath.Join(elsewhere, "sys"), filepath.Join(elsewhere, "proc"), 78, id); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a process that there is not: %v", err)
	}
	bare := machine(t, map[string]string{"proc/77/cgroup": "0::/system.slice/docker-" + id + ".scope\n"})
	if _, err := find(bare); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("where the files cannot be read: %v", err)
	}
	spoiled := version2(t, map[string]string{"memory.current": "max\n"})
	if _, err := find(spoiled); err == nil {
		t.Error("a text was taken for a number")
	}
}

func FuzzEach(f *testing.F) {
	f.Add([]byte("cache 135168\nrss 1216512\n"))
	f.Add([]byte("user 18446744073709551615\nsystem -1\n x\n5 \n\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		each(body, func(name []byte, n uint64) {
			if strings.ContainsAny(string(name), " \n") {
				t.Errorf("read the name %q and %d of %q", name, n, body)
			}
		})
	})
}

func FuzzParsePaths(f *testing.F) {
	f.Add("2:cpu,cpuacct:/docker/x\n0::/\n")
	f.Add("::\n1:a:b:c\n")
	f.Fuzz(func(t *testing.T, body string) {
		for controller, path := range parsePaths(body) {
			if !strings.HasPrefix(path, "/") || strings.Contains(controller, ",") {
				t.Errorf("read %q at %q of %q", controller, path, body)
			}
		}
	})
}
