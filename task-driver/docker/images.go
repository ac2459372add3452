package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/client"
)

// Image looks up an image the daemon has. It returns ErrNotFound when it has none of that name, or not with that digest.
func (e *Engine) Image(ctx context.Context, ref string) (Image, error) {
	found, err := e.cli.ImageInspect(ctx, ref)
	if err != nil {
		return Image{}, e.fault("look up image "+ref, err)
	}
	out := Image{ID: found.ID}
	if found.Config != nil {
		out.Env = found.Config.Env
	}
	return out, nil
}

// ImageID is the id of an image the daemon has, as by Image.
func (e *Engine) ImageID(ctx context.Context, ref string) (string, error) {
	found, err := e.Image(ctx, ref)
	return found.ID, err
}

// RemoveImage removes an image and its names. It returns ErrImageInUse when a container has it, and no error when it is gone.
func (e *Engine) RemoveImage(ctx context.Context, id string) error {
	_, err := e.cli.ImageRemove(ctx, id, image.RemoveOptions{PruneChildren: true})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err) && strings.Contains(err.Error(), "container"):
		return fmt.Errorf("remove image %s: %w: %s", id, ErrImageInUse, daemonWords(err))
	}
	return e.fault("remove image "+id, err)
}

// Load takes the images of an archive that docker save wrote.
func (e *Engine) Load(ctx context.Context, tar io.Reader) error {
	got, err := e.cli.ImageLoad(ctx, tar, client.ImageLoadWithQuiet(true))
	if err != nil {
		return e.fault("load image", err)
	}
	defer got.Body.Close() //nolint:errcheck // read to its end or given up
	if err := readPull(got.Body, nil); err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	return nil
}

// Pull fetches an image. progress gets a short text whenever the fetched share of the known bytes has grown by a
// tenth, or by less in ten seconds; it may be nil. A pull of which nothing is heard for the time of silence (0: for ever)
// is given up with a StalledError.
func (e *Engine) Pull(ctx context.Context, ref string, auth *Auth, silence time.Duration, progress func(string)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	heard := func() {}
	if silence > 0 {
		stalled := time.AfterFunc(silence, func() { cancel(&StalledError{Ref: ref, Silence: silence}) })
		defer stalled.Stop()
		heard = func() { stalled.Reset(silence) }
	}
	err := e.pull(ctx, ref, auth, heard, progress)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("pull image %s: %w", ref, context.Cause(ctx))
	}
	return err
}

// StalledError says that nothing was heard of a pull for too long. Trying again later may succeed.
type StalledError struct {
	Ref     string
	Silence time.Duration
}

func (e *StalledError) Error() string {
	return fmt.Sprintf("the daemon said nothing of it for %s", e.Silence)
}

// Temporary tells callers that the same call may succeed later.
func (e *StalledError) Temporary() bool { return true }

func (e *Engine) pull(ctx context.Context, ref string, auth *Auth, heard func(), progress func(string)) error {
	options := image.PullOptions{}
	if auth != nil {
		encoded, err := registry.EncodeAuthConfig(registry.AuthConfig{
			Username: auth.Username, Password: auth.Password, ServerAddress: auth.ServerAddress, IdentityToken: auth.IdentityToken,
		})
		if err != nil {
			return errors.New("encode registry credentials")
		}
		options.RegistryAuth = encoded
	}
	body, err := e.cli.ImagePull(ctx, ref, options)
	if err != nil {
		return e.fault("pull image "+ref, err)
	}
	defer body.Close() //nolint:errcheck // read to its end or given up
	if err := readPull(heardReader{body, heard}, progress); err != nil {
		return fmt.Errorf("pull image %s: %w", ref, err)
	}
	return nil
}

// heardReader tells of every byte that comes.
type heardReader struct {
	io.Reader
	heard func()
}

func (r heardReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.heard()
	}
	return n, err
}

// Import makes an image out of a tar archive of its file system.
func (e *Engine) Import(ctx context.Context, tar io.Reader, ref string, changes []string) error {
	body, err := e.cli.ImageImport(ctx, image.ImportSource{Source: tar, SourceName: "-"}, ref, image.ImportOptions{Changes: changes})
	if err != nil {
		return e.fault("import image "+ref, err)
	}
	defer body.Close() //nolint:errcheck // read to its end or given up
	return readPull(body, nil)
}

// Tag gives an image another name.
func (e *Engine) Tag(ctx context.Context, ref, name string) error {
	return e.fault("tag image "+ref, e.cli.ImageTag(ctx, ref, name))
}
