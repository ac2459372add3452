//go:build linux

package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
)

// Docker is the address of the daemon that tests may use: HETEROFLOW_TEST_DOCKER, else the default one when it
// answers. Empty means that there is none.
func Docker() string {
	for _, host := range []string{os.Getenv("HETEROFLOW_TEST_DOCKER"), os.Getenv("DOCKER_HOST"), client.DefaultDockerHost} {
		if host == "" {
			continue
		}
		docker, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
		if err != nil {
			continue
		}
		_, err = docker.Ping(context.Background())
		docker.Close()
		if err == nil {
			return host
		}
	}
	return ""
}

// Static builds a program of this module without cgo, so that it runs in an image that holds nothing else.
func Static(t testing.TB, dir, pkg string) string {
	t.Helper()
	path := filepath.Join(dir, filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-o", path, "github.com/heteroflow/heteroflow/"+pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	return path
}

// Version builds programs of this module that call themselves another version.
func Version(t testing.TB, dir, version string, pkgs ...string) {
	t.Helper()
	args := []string{"build", "-ldflags", "-X github.com/heteroflow/heteroflow/internal/version.Version=" + version, "-o", dir + string(filepath.Separator)}
	for _, pkg := range pkgs {
		args = append(args, "github.com/heteroflow/heteroflow/"+pkg)
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("build version %s: %v\n%s", version, err, out)
	}
}

// Image makes an image out of one static program. changes are Dockerfile lines such as ENV A=b. No registry is asked.
func Image(t testing.TB, host, name, program string, changes ...string) {
	t.Helper()
	body, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = w.WriteHeader(&tar.Header{Name: filepath.Base(program), Mode: 0o755, Size: int64(len(body))})
	if err == nil {
		_, err = w.Write(body)
	}
	if err == nil {
		// Programs expect a folder for temporary files.
		err = w.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777})
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	docker, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer docker.Close()
	out, err := docker.ImageImport(context.Background(), image.ImportSource{Source: &archive, SourceName: "-"}, name, image.ImportOptions{Changes: changes})
	if err == nil {
		_, err = io.Copy(io.Discard, out)
		out.Close()
	}
	if err != nil {
		t.Fatal(fmt.Errorf("make image %s: %w", name, err))
	}
}
