package modelcache_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/modelcache"
)

const (
	accessKey = "AKIDEXAMPLE"
	secretKey = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
)

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// signed works a signature out anew, from the published description of version 4.
func signed(r *http.Request, region string) bool {
	credential, rest, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="), ", SignedHeaders=")
	names, signature, _ := strings.Cut(rest, ", Signature=")
	date := r.Header.Get("X-Amz-Date")
	if len(date) < 8 {
		return false
	}
	scope := date[:8] + "/" + region + "/s3/aws4_request"
	if credential != accessKey+"/"+scope {
		return false
	}
	var headers strings.Builder
	for _, name := range strings.Split(names, ";") {
		value := r.Header.Get(name)
		if name == "host" {
			value = r.Host
		}
		fmt.Fprintf(&headers, "%s:%s\n", name, strings.TrimSpace(value))
	}
	// The path as the sender meant it: every byte but the unreserved ones in %XX.
	var path strings.Builder
	for _, c := range []byte(r.URL.Path) {
		if strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/", c) >= 0 {
			path.WriteByte(c)
		} else {
			fmt.Fprintf(&path, "%%%02X", c)
		}
	}
	canonical := strings.Join([]string{r.Method, path.String(), r.URL.RawQuery, headers.String(), names, r.Header.Get("X-Amz-Content-Sha256")}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	toSign := "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + hex.EncodeToString(sum[:])
	key := mac(mac(mac(mac([]byte("AWS4"+secretKey), date[:8]), region), "s3"), "aws4_request")
	return hex.EncodeToString(mac(key, toSign)) == signature && slices.Contains(strings.Split(names, ";"), "host")
}

// store is a fake S3 store that checks signatures.
type store struct {
	*httptest.Server
	mu    sync.Mutex
	asked []*http.Request
	cut   bool // the next answer breaks in its middle
}

func newStore(t *testing.T, region string, all map[string][]byte) *store {
	t.Helper()
	s := &store{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r)
		cut := s.cut
		s.cut = false
		s.mu.Unlock()
		if r.Header.Get("Authorization") != "" && !signed(r, region) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, "<Error><Code>SignatureDoesNotMatch</Code><StringToSign>%s</StringToSign></Error>", r.Header.Get("Authorization"))
			return
		}
		if r.Header.Get("Authorization") == "" && !strings.HasPrefix(r.URL.Path, "/public/") {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<Error><Code>AccessDenied</Code></Error>")
			return
		}
		body, ok := all[strings.TrimPrefix(r.URL.Path, "/")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
			return
		}
		w.Header().Set("ETag", `"`+checksum(body)[7:39]+`"`)
		if cut {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body[:len(body)/2]) //nolint:errcheck // a test server
			panic(http.ErrAbortHandler)
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *store) ask(t *testing.T, r *rig, source, sum string, env map[string]string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err := r.Ensure(ctx, modelcache.Ask{TaskID: "t", Source: source, Checksum: sum, Env: env}, r.event)
	return err
}

func TestS3_SignedWithTheTasksCredentials(t *testing.T) {
	t.Parallel()
	body := content(70, 1<<20)
	const odd = "team a/llm+v2=é,(1)/m$.gguf"
	list := []byte(checksum(body)[7:] + "  weights/a b.bin\n")
	s := newStore(t, "cn-north-1", map[string][]byte{"bucket/" + odd: body, "bucket/tree/SHA256SUMS": list, "bucket/tree/weights/a b.bin": body})
	env := map[string]string{"AWS_ENDPOINT_URL": s.URL + "/", "AWS_REGION": "cn-north-1", "AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_SESSION_TOKEN": "tok"}
	s.cut = true
	r := newRig(t)
	if err := s.ask(t, r, "s3://bucket/"+(&url.URL{Path: odd}).EscapedPath(), checksum(body), env); err != nil {
		t.Fatal(err)
	}
	if len(s.asked) != 2 || s.asked[1].Header.Get("Range") == "" || s.asked[0].Header.Get("X-Amz-Security-Token") != "tok" {
		t.Errorf("requests are %+v", s.asked)
	}
	if err := s.ask(t, r, "s3://bucket/tree/", checksum(list), env); err != nil {
		t.Fatal(err)
	}
	env["AWS_SECRET_ACCESS_KEY"] = "wrong"
	err := s.ask(t, newRig(t), "s3://bucket/tree/", checksum(list), env)
	if err == nil || !strings.Contains(err.Error(), "SignatureDoesNotMatch") || strings.Contains(err.Error(), accessKey) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("wrong credentials give %v", err)
	}
	if said := r.said(); strings.Contains(said, secretKey) || strings.Contains(said, accessKey) || !strings.Contains(said, "from "+s.URL+"/bucket/team") {
		t.Errorf("events are:\n%s", said)
	}
	delete(env, "AWS_SECRET_ACCESS_KEY")
	if err := s.ask(t, newRig(t), "s3://bucket/tree/", checksum(list), env); err == nil || !strings.Contains(err.Error(), "one is missing") {
		t.Errorf("half of the credentials give %v", err)
	}
}

func TestS3_TheNodesCredentialsStayWithTheNodesStore(t *testing.T) {
	t.Parallel()
	body := content(71, 1000)
	node := newStore(t, "us-east-1", map[string][]byte{"bucket/m": body})
	foreign := newStore(t, "us-east-1", map[string][]byte{"bucket/m": body, "public/m": body})
	with := func(o *modelcache.Options) {
		o.S3 = modelcache.S3{Endpoint: node.URL, AccessKey: accessKey, SecretKey: secretKey}
	}
	if err := node.ask(t, newRig(t, with), "s3://bucket/m", checksum(body), nil); err != nil {
		t.Error(err)
	}
	err := foreign.ask(t, newRig(t, with), "s3://bucket/m", checksum(body), map[string]string{"AWS_ENDPOINT_URL_S3": foreign.URL})
	if err == nil || !strings.Contains(err.Error(), "AccessDenied") || foreign.asked[0].Header.Get("Authorization") != "" {
		t.Errorf("a task's own store got the node's signature: %v", err)
	}
	if err := foreign.ask(t, newRig(t, with), "s3://public/m", checksum(body), map[string]string{"AWS_ENDPOINT_URL_S3": foreign.URL}); err != nil {
		t.Errorf("without credentials: %v", err)
	}
	host := strings.Replace(foreign.URL, "http://", "http://{bucket}.", 1)
	if err := foreign.ask(t, newRig(t), "s3://public/m", checksum(body), map[string]string{"AWS_ENDPOINT_URL_S3": host}); err == nil || !strings.Contains(err.Error(), "http://public.127.0.0.1") {
		t.Errorf("the bucket in the name of the host: %v", err)
	}
}

func TestS3_RedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	url := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Amz-Bucket-Region", "eu-west-1")
		http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusMovedPermanently)
	})
	r := newRig(t)
	_, err := r.Ensure(context.Background(), modelcache.Ask{TaskID: "t", Source: "s3://b/k", Checksum: checksum(nil), Env: map[string]string{"AWS_ENDPOINT_URL": url}}, r.event)
	if err == nil || !strings.Contains(err.Error(), `AWS_REGION = "eu-west-1"`) {
		t.Errorf("%v", err)
	}
}
