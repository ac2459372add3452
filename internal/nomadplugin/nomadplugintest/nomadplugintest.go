//go:build unix

// Package nomadplugintest drives a built plugin binary as a Nomad client does and fails a test where a client would
// crash, get confused or drop the plugin: three launches, three configurations, reattachment, crash and a whole task
// life. It holds no plugin of its own but the sample; what a plugin must do beyond the protocol is tested beside it.
package nomadplugintest

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goversion "github.com/hashicorp/go-version"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

// callTimeout bounds every call that answers at once; firstMessage bounds what a node's registration waits for.
const (
	callTimeout  = 20 * time.Second
	firstMessage = 50 * time.Second
)

// runner is one plugin binary under test.
type runner struct {
	binary string
	config map[string]any
	kind   basepb.PluginType
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func logger(t *testing.T) hclog.Logger {
	t.Helper()
	return hclog.New(&hclog.LoggerOptions{Name: t.Name(), Level: hclog.Debug, Output: testWriter{t}})
}

// testWriter shows the plugin's log with the test. Lines that come after its end are dropped.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Log(string(p))
	}
	return len(p), nil
}

func (r runner) launch(t *testing.T) *host.Plugin {
	t.Helper()
	p, err := host.Launch(context.Background(), host.Command{Path: r.binary}, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// configured launches an instance and gives it its configuration, as the one that stays gets it.
func (r runner) configured(t *testing.T) *host.Plugin {
	t.Helper()
	p := r.launch(t)
	r.setConfig(t, p, &basepb.NomadConfig{Driver: &basepb.NomadDriverConfig{ClientMinPort: 14000, ClientMaxPort: 14512}})
	return p
}

func (r runner) setConfig(t *testing.T, p *host.Plugin, nomad *basepb.NomadConfig) {
	t.Helper()
	ctx := within(t, callTimeout)
	schema, err := p.Base().ConfigSchema(ctx, &basepb.ConfigSchemaRequest{})
	if err != nil {
		t.Fatalf("config schema: %v", err)
	}
	doc, err := host.EncodeConfig(schema.GetSpec(), r.config)
	if err != nil {
		t.Fatal(err)
	}
	req := &basepb.SetConfigRequest{MsgpackConfig: doc, NomadConfig: nomad, PluginApiVersion: nomadplugin.APIVersion}
	if _, err := p.Base().SetConfig(ctx, req); err != nil {
		t.Fatalf("set config: %v", err)
	}
}

// testLaunches goes through what an agent does at its start, beside an instance that is still alive.
func (r runner) testLaunches(t *testing.T) {
	t.Helper()
	r.configured(t)
	first := r.launch(t)
	ctx := within(t, callTimeout)
	info, err := first.Base().PluginInfo(ctx, &basepb.PluginInfoRequest{})
	if err != nil {
		t.Fatalf("plugin info: %v", err)
	}
	if info.Type != r.kind {
		t.Errorf("type %s, want %s", info.Type, r.kind)
	}
	if len(info.PluginApiVersions) != 1 || info.PluginApiVersions[0] != nomadplugin.APIVersion {
		t.Errorf("api versions %v, want %s alone", info.PluginApiVersions, nomadplugin.APIVersion)
	}
	if _, err := goversion.NewVersion(info.PluginVersion); err != nil {
		t.Errorf("version %q: %v", info.PluginVersion, err)
	}
	if info.Name == "" {
		t.Error("no name")
	}
	schema, err := first.Base().ConfigSchema(ctx, &basepb.ConfigSchemaRequest{})
	if err != nil || schema.GetSpec().GetObject() == nil {
		t.Errorf("config schema %v, %v, want an object", schema, err)
	}
	if _, err := host.EncodeConfig(schema.GetSpec(), nil); err != nil {
		t.Errorf("an empty config block: %v", err)
	}
	gone(t, first)

	second := r.launch(t)
	r.setConfig(t, second, nil)
	r.setConfig(t, second, nil)
	gone(t, second)
	gone(t, r.configured(t))
}

// gone stops a plugin the gentle way and fails when it had to be killed.
func gone(t *testing.T, p *host.Plugin) {
	t.Helper()
	started := time.Now()
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		p.Kill()
	}()
	pid := p.ReattachInfo().Pid
	for deadline := started.Add(callTimeout); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("plugin is still there after Kill")
		}
	}
	if took := time.Since(started); took >= 2*time.Second {
		t.Errorf("plugin took %s to end: it does not stop when asked", took)
	}
	<-killed
	<-p.Exited()
}

// crash ends a plugin as the kernel would and waits until that was noticed.
func crash(t *testing.T, p *host.Plugin) {
	t.Helper()
	if err := syscall.Kill(p.ReattachInfo().Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-time.After(callTimeout):
		t.Fatal("the end of the plugin was not noticed")
	}
}

// reattached is a second connection to a running plugin, which gets no configuration.
func reattached(t *testing.T, p *host.Plugin) *host.Plugin {
	t.Helper()
	again, err := host.Reattach(context.Background(), p.ReattachInfo(), logger(t))
	if err != nil {
		t.Fatal(err)
	}
	return again
}
