package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/heteroflow/heteroflow/internal/clock"
)

const (
	frameBytes = 64 << 10
	// followEvery is how often a file that is followed is looked at.
	followEvery = 100 * time.Millisecond
)

// openRoot opens the allocation's folder. Every path below it is resolved by the root, so that no link a task made
// leads out of it.
func (c *Client) openRoot(allocID string) (*os.Root, *allocRunner, error) {
	ar, err := c.runner(allocID)
	if err != nil {
		return nil, nil, err
	}
	root, err := os.OpenRoot(ar.dir.root)
	if err != nil {
		return nil, nil, fmt.Errorf("open allocation folder: %w", err)
	}
	return root, ar, nil
}

// relative cleans a path that starts at the allocation's root, and refuses the folders that hold secrets.
func relative(p string) (string, error) {
	clean := strings.TrimPrefix(path.Clean("/"+p), "/")
	if parts := strings.Split(clean, "/"); len(parts) > 1 && (parts[1] == "secrets" || parts[1] == "private") && parts[0] != "alloc" {
		return "", fmt.Errorf("%s: reading secret files is not allowed: %w", p, fs.ErrPermission)
	}
	if clean == "" {
		clean = "."
	}
	return filepath.FromSlash(clean), nil
}

func fileInfo(info fs.FileInfo, name string) *api.AllocFileInfo {
	out := &api.AllocFileInfo{Name: info.Name(), IsDir: info.IsDir(), Size: info.Size(), FileMode: info.Mode().String(), ModTime: info.ModTime().UTC()}
	if !info.IsDir() {
		out.ContentType = mime.TypeByExtension(filepath.Ext(name))
	}
	return out
}

// List implements Backend.
func (c *Client) List(allocID, p string) ([]*api.AllocFileInfo, error) {
	root, _, err := c.openRoot(allocID)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	rel, err := relative(p)
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(root.FS(), filepath.ToSlash(rel))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", p, err)
	}
	out := []*api.AllocFileInfo{}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", p, err)
		}
		out = append(out, fileInfo(info, e.Name()))
	}
	return out, nil
}

// Stat implements Backend.
func (c *Client) Stat(allocID, p string) (*api.AllocFileInfo, error) {
	root, _, err := c.openRoot(allocID)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	rel, err := relative(p)
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(rel)
	if err != nil {
		return nil, fmt.Errorf("stat %s: %w", p, err)
	}
	out := fileInfo(info, rel)
	if !info.IsDir() && info.Mode().IsRegular() && out.ContentType == "" {
		if out.ContentType, err = sniff(root, rel); err != nil {
			return nil, fmt.Errorf("stat %s: %w", p, err)
		}
	}
	return out, nil
}

func sniff(root *os.Root, rel string) (string, error) {
	f, err := root.Open(rel)
	if err != nil {
		return "", err
	}
	defer f.Close()
	buf := make([]byte, 512)
	n, err := io.ReadFull(f, buf)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", err
	}
	return http.DetectContentType(buf[:n]), nil
}

// openRegular opens a plain file. Opening a pipe would wait for its writer.
func openRegular(root *os.Root, rel string) (*os.File, int64, error) {
	info, err := root.Stat(rel)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a file", rel)
	}
	f, err := root.Open(rel)
	return f, info.Size(), err
}

// Stream implements Backend.
func (c *Client) Stream(ctx context.Context, r StreamRequest, send func(*api.StreamFrame) error) error {
	root, ar, err := c.openRoot(r.AllocID)
	if err != nil {
		return err
	}
	defer root.Close()
	rel, err := relative(r.Path)
	if err != nil {
		return err
	}
	f, size, err := openRegular(root, rel)
	if err != nil {
		return fmt.Errorf("read %s: %w", r.Path, err)
	}
	defer f.Close()
	offset := r.Offset
	if r.Origin == "end" {
		offset = max(0, size-r.Offset)
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return fmt.Errorf("read %s: %w", r.Path, err)
	}
	left := r.Limit
	for {
		n, err := sendFile(f, rel, &offset, left, send)
		if err != nil {
			return err
		}
		if left > 0 {
			if left -= n; left <= 0 {
				return nil
			}
		}
		if !r.Follow || ar.done.is() {
			return nil
		}
		if err := follow(ctx, f, rel, &offset, send); err != nil {
			return err
		}
	}
}

// sendFile sends what the file has from where it stands, at most limit bytes unless that is 0.
func sendFile(f *os.File, name string, offset *int64, limit int64, send func(*api.StreamFrame) error) (int64, error) {
	var sent int64
	buf := make([]byte, frameBytes)
	for limit == 0 || sent < limit {
		chunk := buf
		if limit > 0 {
			chunk = buf[:min(int64(len(buf)), limit-sent)]
		}
		n, err := f.Read(chunk)
		if n > 0 {
			frame := &api.StreamFrame{Offset: *offset + int64(n), Data: append([]byte(nil), chunk[:n]...), File: filepath.ToSlash(name)}
			if err := send(frame); err != nil {
				return sent, err
			}
			*offset += int64(n)
			sent += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return sent, nil
		}
		if err != nil {
			return sent, fmt.Errorf("read %s: %w", name, err)
		}
	}
	return sent, nil
}

// follow waits a moment, and starts over when the file became shorter.
func follow(ctx context.Context, f *os.File, name string, offset *int64, send func(*api.StreamFrame) error) error {
	if !clock.Sleep(ctx, clock.System(), followEvery) {
		return ctx.Err()
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("follow %s: %w", name, err)
	}
	if info.Size() >= *offset {
		return nil
	}
	*offset = 0
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("follow %s: %w", name, err)
	}
	return send(&api.StreamFrame{File: filepath.ToSlash(name), FileEvent: "file truncated"})
}
