package driver

import (
	"context"
	"errors"
	"maps"
	system "runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/structspb"
)

// Times of the driver's looks at its runtimes.
const (
	lookEvery   = 5 * time.Second
	lookTimeout = 5 * time.Second // a daemon that hangs is as good as none
)

// Fingerprint tells Nomad which runtimes are usable, at once and on every change.
func (d *Driver) Fingerprint(ctx context.Context, send func(*driverpb.FingerprintResponse) error) error {
	ctx, stop := context.WithCancel(ctx)
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	defer stop()
	sweeping.Go(func() { d.sweep(ctx) })
	sweeping.Go(func() { d.reconcileShares(ctx) })
	sweeping.Go(func() { d.keepShares(ctx) })
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var last *driverpb.FingerprintResponse
	for {
		now := d.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if last == nil || !proto.Equal(last, now) {
			if err := send(now); err != nil {
				return err
			}
			if last != nil {
				d.log.Info("health changed", "health", now.GetHealth().String(), "description", now.GetHealthDescription())
			}
			last = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// look asks every runtime. An attribute that no longer holds is sent empty, which deletes it on the node.
func (d *Driver) look(ctx context.Context) *driverpb.FingerprintResponse {
	s, runtimes := d.current()
	attrs := map[string]string{"version": d.version, "runtime.docker": "", "runtime.docker.version": "", "runtime.process": "", "runtime.process.limits": ""}
	var usable, problems []string
	if system.GOOS != "linux" { // nothing can be supervised; the driver's error for a start says the same
		runtimes = nil
	}
	if r, ok := runtimes[runtimeDocker].(*dockerRuntime); ok {
		askCtx, cancel := context.WithTimeout(ctx, lookTimeout)
		info, err := r.engine.Info(askCtx)
		cancel()
		switch {
		case err == nil:
			attrs["runtime.docker"], attrs["runtime.docker.version"] = "true", info.Version
			usable = append(usable, "docker "+info.Version)
		case errors.Is(err, context.DeadlineExceeded):
			problems = append(problems, "the Docker daemon at "+r.engine.Host()+" does not answer within "+lookTimeout.String())
		default:
			problems = append(problems, err.Error())
		}
	}
	if r, ok := runtimes[runtimeProcess].(*processRuntime); ok {
		attrs["runtime.process"], attrs["runtime.process.limits"] = "true", string(r.mode)
		usable = append(usable, "process")
	}
	maps.Copy(attrs, d.lookAtShares(ctx))
	f := &driverpb.FingerprintResponse{Attributes: map[string]*structspb.Attribute{}, Health: driverpb.FingerprintResponse_HEALTHY}
	for name, value := range attrs {
		f.Attributes["driver."+Name+"."+name] = &structspb.Attribute{Value: &structspb.Attribute_StringVal{StringVal: value}}
	}
	switch {
	case len(usable) > 0:
		if s.key == nil {
			problems = append(problems, "grants are refused: the plugin's config has no grant_public_key")
		}
		f.HealthDescription = strings.Join(append([]string{"ready: " + strings.Join(usable, ", ")}, problems...), "; ")
	case len(problems) > 0:
		f.Health, f.HealthDescription = driverpb.FingerprintResponse_UNHEALTHY, strings.Join(problems, "; ")
	case system.GOOS != "linux":
		f.Health, f.HealthDescription = driverpb.FingerprintResponse_UNDETECTED, "the driver runs tasks on Linux nodes only, this one has "+system.GOOS
	default:
		f.Health, f.HealthDescription = driverpb.FingerprintResponse_UNDETECTED, "every runtime is switched off in the plugin's config"
	}
	return f
}
