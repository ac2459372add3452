package host_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/devicepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/nomadplugintest/sample"
)

func TestMain(m *testing.M) {
	sample.Main()
	os.Exit(m.Run())
}

func launch(t *testing.T, kind string) *host.Plugin {
	t.Helper()
	binary := sample.Install(t, t.TempDir(), kind, "sample-"+kind)
	p, err := host.Launch(context.Background(), host.Command{Path: binary}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func waitExited(t *testing.T, p *host.Plugin) {
	t.Helper()
	select {
	case <-p.Exited():
	case <-time.After(20 * time.Second):
		t.Fatal("the end of the plugin was not noticed")
	}
}

func TestLaunch_Kill(t *testing.T) {
	t.Parallel()
	p := launch(t, "device")
	info, err := p.Base().PluginInfo(context.Background(), &basepb.PluginInfoRequest{})
	if err != nil || info.Name != "sample-device" || info.Type != basepb.PluginType_DEVICE {
		t.Errorf("info %v, %v", info, err)
	}
	select {
	case <-p.Exited():
		t.Fatal("exited while it runs")
	default:
	}
	p.Kill()
	waitExited(t, p)
	p.Kill() // again, harmless
}

func TestLaunch_Refuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := filepath.Join(dir, "no-plugin")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho hello\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"a file that is not there": filepath.Join(dir, "none"), "a program that is no plugin": script} {
		if p, err := host.Launch(context.Background(), host.Command{Path: path}, hclog.NewNullLogger()); err == nil {
			p.Kill()
			t.Errorf("%s was launched", name)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v does not name the binary", name, err)
		}
	}
}

func TestExited_Crash(t *testing.T) {
	t.Parallel()
	p := launch(t, "device")
	if err := syscall.Kill(p.ReattachInfo().Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitExited(t, p)
}

func TestReattach(t *testing.T) {
	t.Parallel()
	p := launch(t, "device")
	again, err := host.Reattach(context.Background(), p.ReattachInfo(), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	stream, err := again.DeviceClient().Fingerprint(t.Context(), &devicepb.FingerprintRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := stream.Recv(); err != nil || len(list.DeviceGroup) != 1 {
		t.Errorf("list %v, %v", list, err)
	}
	stranger := p.ReattachInfo()
	stranger.Pid = os.Getpid()
	if _, err := host.Reattach(context.Background(), stranger, hclog.NewNullLogger()); err == nil || !strings.Contains(err.Error(), "belongs to process") {
		t.Errorf("reattached to the socket of another process: %v", err)
	}
	again.Kill()
	waitExited(t, p)
	if _, err := host.Reattach(context.Background(), p.ReattachInfo(), hclog.NewNullLogger()); err == nil {
		t.Error("reattached to a plugin that is gone")
	}
}
