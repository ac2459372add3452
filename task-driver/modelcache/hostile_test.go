package modelcache_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/modelcache"
)

// hostile serves every request by one handler.
func hostile(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func TestHostile_BodyWithoutEnd(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	url := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			n, err := w.Write(make([]byte, 64<<10))
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	})
	newRig(t).refused(url+"/m", checksum(nil), "does not say how long")
	if n := sent.Load(); n > 32<<20 {
		t.Errorf("%d bytes were taken", n)
	}
}

func TestHostile_RangeWithoutEnd(t *testing.T) {
	t.Parallel()
	body := content(50, 1<<20)
	url := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Range") == "" {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body[:len(body)/2]) //nolint:errcheck // a test server
			panic(http.ErrAbortHandler)
		}
		var from int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from) //nolint:errcheck // a test server
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(body)-1, len(body)))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(body[from:]) //nolint:errcheck // a test server
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	newRig(t).got("a", url+"/m", body) // what comes behind the end is not read
}

func TestHostile_WrongLength(t *testing.T) {
	t.Parallel()
	body := content(51, 300_000)
	short := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(body)+10))
		w.Write(body) //nolint:errcheck // a test server
	})
	err := newRig(t).refused(short+"/m", checksum(body))
	var passes interface{ Temporary() bool }
	if !asTemporary(err, &passes) {
		t.Errorf("a connection that breaks is final: %v", err)
	}
	long := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100000")
		w.Write(body[:100_000]) //nolint:errcheck // a test server
	})
	newRig(t).refused(long+"/m", checksum(body), "checksum")
	huge := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9223372036854775807")
		w.Write(body) //nolint:errcheck // a test server
	})
	newRig(t).refused(huge+"/m", checksum(body), "free")
	newRig(t, func(o *modelcache.Options) { o.MaxBytes = 1000 }).refused(huge+"/m", checksum(body), "max_size")
}

func TestHostile_RangeIgnored(t *testing.T) {
	t.Parallel()
	body := content(52, 1<<20)
	first := true
	url := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		if first {
			first = false
			w.Write(body[:len(body)/2]) //nolint:errcheck // a test server
			panic(http.ErrAbortHandler)
		}
		w.Write(body) //nolint:errcheck // a test server
	})
	newRig(t).got("a", url+"/m", body)
}

func TestHostile_WrongRange(t *testing.T) {
	t.Parallel()
	body := content(53, 1<<20)
	for name, answer := range map[string]string{
		"another place": "bytes 0-1048575/1048576", "backwards": "bytes 10-2/1048576", "no total": "bytes %d-1048575/*", "nonsense": "x", "beyond": "bytes %d-1048576/1048576", "negative": "bytes -5-10/20",
	} {
		t.Run(name, func(t *testing.T) {
			first := true
			url := hostile(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Range") != "" {
					var from int
					fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from) //nolint:errcheck // a test server
					if strings.Contains(answer, "%d") {
						answer = fmt.Sprintf(answer, from)
					}
					w.Header().Set("Content-Range", answer)
					w.WriteHeader(http.StatusPartialContent)
					w.Write(body) //nolint:errcheck // a test server
					return
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
				if first {
					first = false
					w.Write(body[:len(body)/2]) //nolint:errcheck // a test server
					panic(http.ErrAbortHandler)
				}
				w.Write(body) //nolint:errcheck // a test server
			})
			newRig(t).got("a", url+"/m", body)
		})
	}
}

func TestHostile_ChangingTag(t *testing.T) {
	t.Parallel()
	old, now := content(54, 1<<20), content(55, 1<<20)
	asked := 0
	for name, honest := range map[string]bool{"whole file": true, "range nonetheless": false} {
		asked = 0
		url := hostile(t, func(w http.ResponseWriter, r *http.Request) {
			asked++
			w.Header().Set("ETag", fmt.Sprintf(`"%d"`, min(asked, 2)))
			if asked == 1 {
				w.Header().Set("Content-Length", fmt.Sprint(len(old)))
				w.Write(old[:len(old)/2]) //nolint:errcheck // a test server
				panic(http.ErrAbortHandler)
			}
			if !honest {
				r.Header.Del("If-Range")
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(now))
		})
		t.Run(name, func(t *testing.T) { newRig(t).got("a", url+"/m", now) })
	}
}

func TestHostile_ChangedWithoutATag(t *testing.T) {
	t.Parallel()
	old, now := content(56, 1<<20), content(57, 1<<20)
	r := newRig(t)
	asked := 0
	url := hostile(t, func(w http.ResponseWriter, req *http.Request) {
		if asked++; asked == 1 {
			w.Header().Set("Content-Length", fmt.Sprint(len(old)))
			w.Write(old[:len(old)/2]) //nolint:errcheck // a test server
			panic(http.ErrAbortHandler)
		}
		http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(now))
	})
	// Half of each: found out at the end, once, and the restart policy begins anew.
	if _, err := r.ensure("a", url+"/m", checksum(now)); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Fatalf("a mix of two files gives %v", err)
	}
	r.got("a", url+"/m", now)
}

func TestHostile_Slow(t *testing.T) {
	t.Parallel()
	body := content(58, 1<<20)
	url := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		for i := 0; i < len(body) && r.Context().Err() == nil; i++ {
			w.Write(body[i : i+1])                //nolint:errcheck // a test server
			http.NewResponseController(w).Flush() //nolint:errcheck // a test server
			select {
			case <-r.Context().Done():
			case <-time.After(time.Millisecond):
			}
		}
	})
	r := newRig(t, func(o *modelcache.Options) { o.Silence = 20 * time.Millisecond })
	r.refused(url+"/m", checksum(body), "less than 64.0 KiB came in 20ms")
}

func TestHostile_Redirects(t *testing.T) {
	t.Parallel()
	body := content(59, 1000)
	target := serve(t, map[string][]byte{"m": body})
	to := func(where string) string {
		return hostile(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", where)
			w.WriteHeader(http.StatusFound)
		})
	}
	newRig(t).got("a", to(target.URL+"/m")+"/m", body)
	nosy := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Referer") + r.Header.Get("Authorization"); got != "" {
			t.Errorf("another host is told %q", got)
		}
		w.Write(body) //nolint:errcheck // a test server
	})
	newRig(t).got("a", strings.Replace(to(strings.Replace(nosy, "127.0.0.1", "localhost", 1)), "://", "://u:p@", 1)+"/m?sig=secret", body)
	newRig(t).refused(to("file:///etc/passwd")+"/m", checksum(body), `"file"`)
	newRig(t).refused(to("/again")+"/m", checksum(body), "redirects")
	secure := httptest.NewTLSServer(http.RedirectHandler(target.URL+"/m", http.StatusFound))
	t.Cleanup(secure.Close)
	r := newRig(t, func(o *modelcache.Options) {
		o.Client = secure.Client()
		o.Client.CheckRedirect = modelcache.CheckRedirect
	})
	r.refused(secure.URL+"/m", checksum(body), "https to http")
}

func TestHostile_SecretsAreNotTold(t *testing.T) {
	t.Parallel()
	const secret = "hunter2secret"
	url := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		w.Header().Set("X-Echo", password)
		http.Error(w, r.URL.String()+password+r.Header.Get("Authorization"), http.StatusForbidden)
	})
	r := newRig(t)
	for _, source := range []string{
		strings.Replace(url, "://", "://user:"+secret+"@", 1) + "/m?X-Amz-Signature=" + secret,
		"http://user:" + secret + "@127.0.0.1:1/m?token=" + secret, "http://" + secret + ":" + secret + "@[bad/", "gopher://" + secret,
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		ask := modelcache.Ask{TaskID: "a", Source: source, Checksum: checksum(nil), Env: map[string]string{"HETEROFLOW_MODEL_TOKEN": secret}}
		_, err := r.Ensure(ctx, ask, r.event)
		cancel()
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%v", err)
		}
	}
	if strings.Contains(r.said(), secret) {
		t.Errorf("events tell it:\n%s", r.said())
	}
}

func TestHostile_EncodedAndRefused(t *testing.T) {
	t.Parallel()
	url := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			w.Write([]byte("x")) //nolint:errcheck // a test server
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/private":
			w.WriteHeader(http.StatusForbidden)
		case "/odd":
			w.WriteHeader(http.StatusTeapot)
		default:
			http.NotFound(w, r)
		}
	})
	var passes interface{ Temporary() bool }
	for path, word := range map[string]string{"gzip": "gzip", "busy": "503", "private": "credentials", "odd": "418", "none": "not there"} {
		if err := newRig(t).refused(url+"/"+path, checksum(nil), word); asTemporary(err, &passes) != (path == "busy") {
			t.Errorf("%s: passes by itself: %v", path, err)
		}
	}
	newRig(t).refused(url+"/folder/", checksum(nil), "SHA256SUMS")
}
