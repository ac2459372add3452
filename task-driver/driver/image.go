package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// fetch makes sure that the daemon has the image, and keeps it there until the task is destroyed.
func (r *dockerRuntime) fetch(ctx context.Context, p *plan, rec *record, ref string, event func(string)) (docker.Image, error) {
	r.images.fetching.RLock()
	defer r.images.fetching.RUnlock()
	image, pulled, err := r.obtain(ctx, p, ref, event)
	if err != nil {
		return docker.Image{}, err
	}
	rec.Image = image.ID
	rec.ImagePulled = r.images.use(p.cfg.GetId(), image.ID, pulled)
	return image, nil
}

// obtain has the image from the node, from the archive that the job names, or from its registry. pulled says that the node did not
// have it before.
func (r *dockerRuntime) obtain(ctx context.Context, p *plan, ref string, event func(string)) (image docker.Image, pulled bool, err error) {
	if p.tc.Load != "" {
		if err := r.load(ctx, p, event); err != nil {
			return docker.Image{}, false, err
		}
	}
	image, missing := r.engine.Image(ctx, ref)
	if missing != nil && !errors.Is(missing, docker.ErrNotFound) {
		return docker.Image{}, false, missing
	}
	switch policy := p.tc.pullPolicy(ref); {
	case missing == nil && policy != pullAlways:
		return image, false, nil
	case missing != nil && p.tc.Load != "":
		return docker.Image{}, false, fmt.Errorf("config.load: there is no image %s in %s: write as image what docker save put in", ref, p.tc.Load)
	case missing != nil && policy == pullNever:
		return docker.Image{}, false, fmt.Errorf("image %s is not on the node, and pull_policy is never: load it there, or write pull_policy = \"missing\"", ref)
	}
	if err := r.pull(ctx, p, ref, event); err != nil {
		if missing == nil && ctx.Err() == nil {
			event("Image " + ref + " could not be pulled anew (" + err.Error() + "), the one on the node is used")
			return image, false, nil
		}
		return docker.Image{}, false, err
	}
	now, err := r.engine.Image(ctx, ref)
	return now, err == nil && now.ID != image.ID, err
}

// pull asks the registry. There is no limit to the time but the job's own: images of models have tens of gigabytes. Only
// silence ends it.
func (r *dockerRuntime) pull(ctx context.Context, p *plan, ref string, event func(string)) error {
	auth, err := r.auth(ctx, p.tc, ref)
	if err != nil && !p.tc.AuthSoft {
		return fmt.Errorf("%w: mend it, or write auth_soft_fail = true to try without credentials", err)
	}
	if err != nil {
		event("No credentials for image " + ref + " (" + err.Error() + "), pulling without")
	}
	limit, err := p.tc.pullLimit()
	if err != nil {
		return err
	}
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("it took longer than image_pull_timeout = %q", p.tc.PullLimit))
		defer cancel()
	}
	event("Pulling image " + ref)
	began := time.Now()
	err = r.engine.Pull(ctx, ref, auth, r.options.pullSilence, func(text string) { event("Pulling image " + ref + ": " + text) })
	var down *docker.UnreachableError
	switch {
	case err == nil:
		event(fmt.Sprintf("Pulled image %s in %s", ref, time.Since(began).Round(100*time.Millisecond)))
		return nil
	case errors.As(err, &down):
		return err
	}
	return &pullError{err}
}

// pullError is a failed pull: registries come back, so the restart policy decides.
type pullError struct{ err error }

func (e *pullError) Error() string {
	return e.err.Error() + ": check the image's name and that this node reaches its registry, or load the image on the node"
}
func (e *pullError) Unwrap() error   { return e.err }
func (e *pullError) Temporary() bool { return true }

// auth finds credentials: the task's, those of the node's file, those of the node's helper.
func (r *dockerRuntime) auth(ctx context.Context, tc TaskConfig, ref string) (*docker.Auth, error) {
	if tc.Auth != nil && tc.Auth.Username != "" {
		return tc.Auth, nil
	}
	if r.options.AuthFile != "" {
		found, err := docker.AuthFromFile(ctx, r.options.AuthFile, ref)
		if found != nil || err != nil {
			return found, err
		}
	}
	if r.options.AuthHelper != "" {
		return docker.AuthFromHelper(ctx, r.options.AuthHelper, ref)
	}
	return nil, nil
}

// load takes an image from an archive in the task's folder, such as an artifact.
func (r *dockerRuntime) load(ctx context.Context, p *plan, event func(string)) error {
	if filepath.IsAbs(p.tc.Load) {
		return fmt.Errorf("config.load: %s is a path of the node: write one below the task's folder, such as local/image.tar", p.tc.Load)
	}
	var f *os.File
	var err error
	// The stock driver looks in the folder "local" too, where artifacts go.
	for _, path := range []string{p.tc.Load, filepath.Join("local", p.tc.Load)} {
		m, outside := r.inside(p, docker.Mount{Source: path})
		if outside != nil {
			return fmt.Errorf("config.load: %w", outside)
		}
		rel, relErr := filepath.Rel(p.cfg.GetAllocDir(), m.Source)
		if relErr != nil {
			return fmt.Errorf("config.load: %w", relErr)
		}
		if f, err = os.OpenInRoot(p.cfg.GetAllocDir(), rel); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("config.load: %w: have an artifact put it there", err)
	}
	defer f.Close() //nolint:errcheck // only read
	event("Loading image from " + p.tc.Load)
	return r.engine.Load(ctx, f)
}
