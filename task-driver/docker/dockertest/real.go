package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// Image is the name of the image that Real makes. Its only file is a program that knows the words of the fake's
// scripts.
const Image = "heteroflow-test/hftask:1"

var (
	programOnce sync.Once
	program     []byte
	programErr  error
)

// Real returns the host of a Docker daemon that tests may use, with Image loaded, or skips the test with the reason.
// HETEROFLOW_TEST_DOCKER names the daemon, else DOCKER_HOST, else the usual socket is tried.
func Real(t testing.TB) string {
	t.Helper()
	host := os.Getenv("HETEROFLOW_TEST_DOCKER")
	if host == "" {
		host = docker.DefaultHost()
	}
	engine, err := docker.Dial(host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := engine.Info(ctx); err != nil {
		t.Skipf("no real Docker daemon (set HETEROFLOW_TEST_DOCKER to use one): %v", err)
	}
	programOnce.Do(func() { program, programErr = build() })
	if programErr != nil {
		t.Fatal(programErr)
	}
	var image bytes.Buffer
	archive := tar.NewWriter(&image)
	for _, h := range []*tar.Header{{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, {Name: "hftask", Mode: 0o755, Size: int64(len(program))}} {
		if err := archive.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := archive.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	now, nowErr := engine.ImageID(ctx, Image)
	same, sameErr := engine.ImageID(ctx, loaded())
	if nowErr == nil && sameErr == nil && now == same {
		return host // a test run before this one loaded the same program
	}
	changes := []string{`ENTRYPOINT ["/hftask"]`, "ENV NVIDIA_VISIBLE_DEVICES=all", "ENV FROM_IMAGE=yes"}
	if err := engine.Import(ctx, &image, Image, changes); err != nil {
		t.Fatal(err)
	}
	if err := engine.Tag(ctx, Image, loaded()); err != nil {
		t.Fatal(err)
	}
	return host
}

// loaded is a name of the image that changes with its program.
func loaded() string {
	sum := sha256.Sum256(program)
	return "heteroflow-test/hftask:" + hex.EncodeToString(sum[:6])
}

func build() ([]byte, error) {
	_, file, _, _ := runtime.Caller(0)
	dir, err := os.MkdirTemp("", "hftask")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	out := filepath.Join(dir, "hftask")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, ".")
	cmd.Dir = filepath.Join(filepath.Dir(file), "..", "testdata", "hftask")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}
