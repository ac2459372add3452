package mps

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// clientVariable makes this test the client, and names the pipe directory as it sees it.
const clientVariable = "HETEROFLOW_TEST_MPS_CLIENT"

// A folder that is mounted read-only serves clients: they connect to its sockets and write into its pipes, and can neither
// replace nor remove them. That is the kernel's doing, and what the mount of Prepare rests on.
func TestPipe_ReadOnlyServesClients(t *testing.T) {
	if dir := os.Getenv(clientVariable); dir != "" {
		beClient(t, dir)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("a mount needs root")
	}
	dir, err := os.MkdirTemp("", "mps") // short, for the socket's path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	pipe, seen := filepath.Join(dir, "pipe"), filepath.Join(dir, "seen")
	if err := errors.Join(os.Mkdir(pipe, 0o755), os.Mkdir(seen, 0o755), unix.Mkfifo(filepath.Join(pipe, "log"), 0o666)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(pipe, "control"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reader, err := os.OpenFile(filepath.Join(pipe, "log"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	cmd := exec.Command("unshare", "--mount", "sh", "-c",
		`mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" || exit 77; exec "$0" -test.run='^TestPipe_ReadOnlyServesClients$'`, os.Args[0], pipe, seen)
	cmd.Env = append(os.Environ(), clientVariable+"="+seen)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() == 77 || errors.Is(err, exec.ErrNotFound) {
		t.Skipf("no mount can be made here: %v %s", err, out)
	}
	if err != nil {
		t.Errorf("the client: %v\n%s", err, out)
	}
}

func beClient(t *testing.T, dir string) {
	if conn, err := net.Dial("unix", filepath.Join(dir, "control")); err != nil {
		t.Error(err)
	} else if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if pipe, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY, 0); err != nil {
		t.Error(err)
	} else if _, err := pipe.WriteString("x"); err != nil {
		t.Error(err)
	}
	if l, err := net.Listen("unix", filepath.Join(dir, "own")); err == nil {
		l.Close()
		t.Error("a client makes a socket of its own")
	}
	for what, err := range map[string]error{
		"remove":  os.Remove(filepath.Join(dir, "control")),
		"replace": os.Rename(filepath.Join(dir, "log"), filepath.Join(dir, "control")),
		"link":    os.Symlink("/etc/passwd", filepath.Join(dir, "server.log")),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
