package e2e

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"

	"github.com/docker/docker/client"
)

// dockerNodes are the device nodes that containers of a shareBox get. The daemon takes them from this machine, so that they are
// made on it for as long as the test runs, as further names of /dev/null.
var dockerNodes = []string{
	"/dev/nvidia1", "/dev/nvidia2", "/dev/davinci3", "/dev/vdavinci148", "/dev/vdavinci149", "/dev/vdavinci150", "/dev/vdavinci151", "/dev/mtgpu.0", "/dev/mtgpu.1",
	"/dev/xpu0", "/dev/xpu1", "/dev/xpu2", "/dev/xpu3", "/dev/xpu4", "/dev/xpu5", "/dev/xpu6", "/dev/xpu7",
	"/dev/kfd", "/dev/mkfd", "/dev/dri/card201", "/dev/dri/renderD201", "/dev/dri/card202", "/dev/dri/renderD202",
}

// shareNodes makes what containers are given of the machine. What is there already, as on a machine with such cards, stays and
// is not used.
func shareNodes(t *testing.T) {
	t.Helper()
	for _, path := range append(slices.Clone(dockerNodes), "/opt/hyhal") {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Skipf("%s is on this machine already: the test makes its own", path)
		}
	}
	_, err := os.Stat("/dev/dri")
	own := []string{"/opt/hyhal"}
	if errors.Is(err, fs.ErrNotExist) {
		own = append(own, "/dev/dri")
	}
	t.Cleanup(func() {
		for _, path := range append(slices.Clone(dockerNodes), own...) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	const null = 1<<8 | 3
	for _, path := range dockerNodes {
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = syscall.Mknod(path, syscall.S_IFCHR|0o666, null)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll("/opt/hyhal", 0o755); err != nil {
		t.Fatal(err)
	}
}

// usable is why a kind of share cannot be had on this daemon; nothing when it can.
func usable(t *testing.T, host string, c shareCase) string {
	t.Helper()
	if host == "" {
		return "no Docker daemon answers: set HETEROFLOW_TEST_DOCKER, or start one"
	}
	if c.backend != "vxpu" {
		return ""
	}
	docker, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer docker.Close()
	info, err := docker.Info(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, has := info.Runtimes["xpu"]; !has {
		return "the Docker daemon has no runtime xpu: start it with --add-runtime xpu=runc, as .ci/run does"
	}
	return ""
}

// nodesOf checks which device nodes the container of an allocation got, no more and no fewer.
func (s *suite) nodesOf(alloc string, want []string) {
	s.t.Helper()
	docker, err := client.NewClientWithOpts(client.WithHost(s.Docker), client.WithAPIVersionNegotiation())
	if err != nil {
		s.t.Fatal(err)
	}
	defer docker.Close()
	var got []string
	for _, c := range s.containers(alloc) {
		info, err := docker.ContainerInspect(context.Background(), c.ID)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, d := range info.HostConfig.Devices {
			got = append(got, d.PathOnHost+":"+d.PathInContainer)
		}
	}
	slices.Sort(got)
	same := len(got) == len(want)
	for i := range want {
		same = same && regexp.MustCompile(want[i]).MatchString(got[i])
	}
	if !same {
		s.t.Errorf("the container got the nodes %q, want %q", got, want)
	}
}
