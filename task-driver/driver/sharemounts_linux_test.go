package driver

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
	"github.com/heteroflow/heteroflow/task-driver/share"
)

// A hard link stands for a bind mount: it is the same file.
func TestSharesAt(t *testing.T) {
	t.Parallel()
	const good = "/etc/ld.so.preload"
	for name, c := range map[string]struct {
		image func(root, host string) error
		mount string // one more, as the kernel tells it
		want  string
	}{
		"as it was mounted": {func(root, host string) error { return os.Link(host+"/preload", root+good) }, "/data", ""},
		"a link in its place, to another file of the share": {func(root, host string) error {
			return errors.Join(os.Link(host+"/vdev/conf", root+"/lib"), os.Symlink("/lib", root+good))
		}, "", "the image has a link at /etc/ld.so.preload"},
		"a link in its place, to what the job can move": {func(root, host string) error {
			return errors.Join(os.Link(host+"/preload", root+"/data"), os.Symlink("/data", root+good))
		}, "", "the image has a link at /etc/ld.so.preload"},
		"a link above it": {func(root, host string) error {
			return errors.Join(os.Rename(root+"/etc", root+"/etc2"), os.Symlink("etc2", root+"/etc"), os.Link(host+"/preload", root+"/etc2/ld.so.preload"))
		}, "", "the image has a link at /etc, where"},
		"a link to the host's file":              {func(root, host string) error { return os.Symlink(host+"/preload", root+good) }, "", "the image has a link at"},
		"the job's mount over it":                {func(root, _ string) error { return os.WriteFile(root+good, nil, 0o600) }, "", "something else is mounted at /etc/ld.so.preload"},
		"nothing there":                          {func(string, string) error { return nil }, "", "no such file"},
		"the job's mount in a folder of a share": {func(root, host string) error { return os.Link(host+"/preload", root+good) }, `/etc/vdev/my\040conf`, "something is mounted at /etc/vdev/my conf"},
		"beside a folder of a share":             {func(root, host string) error { return os.Link(host+"/preload", root+good) }, "/etc/vdevices", ""},
		"a share's own mount in its folder":      {func(root, host string) error { return os.Link(host+"/preload", root+good) }, "/etc/vdev/conf", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			root, host := filepath.Join(dir, "root"), filepath.Join(dir, "host")
			err := errors.Join(os.MkdirAll(root+"/etc", 0o755), os.MkdirAll(host+"/vdev", 0o755),
				os.WriteFile(host+"/preload", nil, 0o600), os.WriteFile(host+"/vdev/conf", nil, 0o600))
			if err = errors.Join(err, c.image(root, host)); err != nil {
				t.Fatal(err)
			}
			mounts := []share.Mount{{Source: host + "/preload", Target: good}}
			if strings.HasPrefix(c.mount, "/etc") { // a folder cannot be linked: it is one of the image, seen as its own source
				if err := errors.Join(os.Mkdir(root+"/etc/vdev", 0o755), os.Link(host+"/vdev/conf", root+"/etc/vdev/conf")); err != nil {
					t.Fatal(err)
				}
				mounts = append(mounts, share.Mount{Source: root + "/etc/vdev", Target: "/etc/vdev"}, share.Mount{Source: host + "/vdev/conf", Target: "/etc/vdev/conf"})
			}
			err = sharesAt(root, "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:1 /x "+c.mount+" rw - ext4 /dev/sda rw\n", mounts)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// A process of something else than the container, as of a daemon on another machine, is not taken for it.
func TestSharesSeen_AnothersProcess(t *testing.T) {
	t.Parallel()
	if err := sharesSeen(os.Getpid(), strings.Repeat("0", 64), []share.Mount{{Source: "/", Target: "/x"}}); !errors.Is(err, errNotSeen) {
		t.Errorf("got %v", err)
	}
}

// What Docker makes of links in an image: a library in the place of the list that loads it, and a file of the job in the place of
// the share's.
func TestSharesSeen_RealImages(t *testing.T) {
	host := dockertest.Real(t)
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("the images are made by the program docker, which is not there")
	}
	docker := func(in []byte, args ...string) string {
		t.Helper()
		cmd := exec.Command("docker", append([]string{"-H", host}, args...)...)
		cmd.Stdin = bytes.NewReader(in)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("docker %v: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	dir := t.TempDir()
	for _, name := range []string{"preload", "library", "jobs"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	mounts := []share.Mount{{Source: dir + "/preload", Target: "/etc/ld.so.preload"}, {Source: dir + "/library", Target: "/usr/local/vgpu/libvgpu.so"}}
	for name, c := range map[string]struct {
		link, to, job, want string
	}{
		"no link":                       {"fine", "/nowhere", "/data", ""},
		"list to library":               {"etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so", "/data", "the image has a link at /etc/ld.so.preload"},
		"job's mount, over the share's": {"deep/er", "/etc", "/deep/er/ld.so.preload", "something else is mounted at /etc/ld.so.preload"},
		"a folder's link":               {"usr/local", "/opt", "/data", "the image has a link at /usr/local"},
		"into job's folder":             {"etc/ld.so.preload", "/data", "/data", "the image has a link at /etc/ld.so.preload"},
	} {
		t.Run(name, func(t *testing.T) {
			var archive bytes.Buffer
			w := tar.NewWriter(&archive)
			for _, h := range []*tar.Header{{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "deep/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "usr/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "opt/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: c.link, Linkname: c.to, Typeflag: tar.TypeSymlink}} {
				if err := w.WriteHeader(h); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			base := docker(nil, "create", dockertest.Image)
			docker(archive.Bytes(), "cp", "-", base+":/")
			image := docker(nil, "commit", base)
			args := []string{"run", "-d", "--network", "none", "-v", dir + "/jobs:" + c.job}
			for _, m := range mounts {
				args = append(args, "-v", m.Source+":"+m.Target+":ro")
			}
			id := docker(nil, append(args, image, "/hftask", "sleep")...)
			defer func() { docker(nil, "rm", "-f", id, base); docker(nil, "rmi", "-f", image) }()
			pid, err := strconv.Atoi(docker(nil, "inspect", "-f", "{{.State.Pid}}", id))
			if err != nil {
				t.Fatal(err)
			}
			err = sharesSeen(pid, id, mounts)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
