package driver

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
)

// systemd, told to read its units anew, applies to every container what it was told of it: a card's node that some runtime let
// in behind its back is closed then. A daemon whose containers are not systemd's keeps them as they are.
func TestDocker_DaemonReload(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err != nil || os.Geteuid() != 0 {
		t.Skip("systemd is not what runs this machine, or this is not root: no daemon-reload was tried")
	}
	host := dockertest.Real(t)
	for i, node := range []string{"/dev/xpuctrl", "/dev/xpu0"} {
		if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(240, uint32(i)))); err != nil {
			t.Skipf("%s cannot be made, or is there: %v", node, err)
		}
		t.Cleanup(func() { os.Remove(node) }) //nolint:errcheck // it is the test's own
	}
	r := newRig(t, map[string]any{"docker": map[string]any{"endpoint": host}, "process": map[string]any{"enabled": false}})
	j := r.job(map[string]any{"image": dockertest.Image, "network_mode": "none", "args": []string{"sleep"}}, func(c *driverpb.TaskConfig) {
		c.DeviceEnv = reserve(t, whole(accel.Kunlunxin, "SIM-9"))
	})
	r.start(j)
	opened := func(node string) bool {
		t.Helper()
		out, said, _, err := r.Exec(r.ctx, j.cfg.Id, []string{"/hftask", "write", node, "x"}, time.Minute)
		if err != nil {
			t.Fatalf("exec = %v, %q", err, out)
		}
		return !strings.Contains(string(said), "not permitted") // that there is no such device, who may open it hears
	}
	for range 3 {
		for _, node := range []string{"/dev/xpu0", "/dev/xpuctrl"} {
			if !opened(node) {
				t.Fatalf("the task may not use %s", node)
			}
		}
		if out, err := exec.Command("systemctl", "daemon-reload").CombinedOutput(); err != nil {
			t.Fatalf("daemon-reload: %v\n%s", err, out)
		}
	}
}
