package docker_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// helperOn puts a credential helper on PATH. It knows one registry, and notes what it was asked.
func helperOn(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	script := `#!/bin/sh
read server
case "$1 $server" in
"get reg.example") echo '{"ServerURL":"reg.example","Username":"robot","Secret":"s3cret"}' ;;
"get token.example") echo '{"Username":"<token>","Secret":"t0ken"}' ;;
"get odd.example") echo 's3cret is not JSON' ;;
"get down.example") echo 's3cret cannot be read'; exit 1 ;;
*) echo 'credentials not found in native keychain'; exit 1 ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-test"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func TestAuthFromHelper(t *testing.T) {
	helperOn(t)
	for ref, want := range map[string]*docker.Auth{
		"reg.example/app:1":   {Username: "robot", Password: "s3cret", ServerAddress: "reg.example"},
		"token.example/app:1": {IdentityToken: "t0ken", ServerAddress: "token.example"},
		"ubuntu:24.04":        nil,
	} {
		got, err := docker.AuthFromHelper(testContext(t), "test", ref)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", ref, err, diff)
		}
	}
	for helper, ref := range map[string]string{"test": "odd.example/a", "test ": "down.example/a", "../test": "reg.example/a", "": "reg.example/a", "absent": "reg.example/a"} {
		if got, err := docker.AuthFromHelper(testContext(t), strings.TrimSpace(helper), ref); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q %s: %v, %v", helper, ref, got, err)
		}
	}
}

func TestAuthFromFile_Helpers(t *testing.T) {
	helperOn(t)
	path := filepath.Join(t.TempDir(), "config.json")
	for body, want := range map[string]*docker.Auth{
		`{"auths":{"reg.example":{}},"credsStore":"test"}`:                                   {Username: "robot", Password: "s3cret", ServerAddress: "reg.example"},
		`{"credHelpers":{"reg.example":"test"},"credsStore":"absent"}`:                       {Username: "robot", Password: "s3cret", ServerAddress: "reg.example"},
		`{"credHelpers":{"other.example":"test"}}`:                                           nil,
		`{"auths":{"reg.example":{"auth":"bWU6cHc="}},"credHelpers":{"reg.example":"test"}}`: {Username: "me", Password: "pw", ServerAddress: "reg.example"},
	} {
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := docker.AuthFromFile(testContext(t), path, "reg.example/app:1")
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", body, err, diff)
		}
	}
}

// A daemon that asks for certificates.
func TestDialTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := docker.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for path, block := range map[string]*pem.Block{
		files.CA: {Type: "CERTIFICATE", Bytes: der}, files.Cert: {Type: "CERTIFICATE", Bytes: der}, files.Key: {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		if strings.HasSuffix(r.URL.Path, "/info") {
			fmt.Fprint(w, `{"ServerVersion":"20.10","OSType":"linux"}`)
		}
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	server.StartTLS()
	defer server.Close()
	host := "tcp://" + server.Listener.Addr().String()

	e, err := docker.DialTLS(host, &files)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if info, err := e.Info(testContext(t)); err != nil || info.Version != "20.10" {
		t.Errorf("info = %+v, %v", info, err)
	}
	plain := dial(t, host)
	if _, err := plain.Info(testContext(t)); err == nil {
		t.Error("the daemon let a client without a certificate in")
	}
	if _, err := docker.DialTLS(host, &docker.TLS{CA: filepath.Join(dir, "none.pem")}); err == nil {
		t.Error("an absent file is no error")
	}
}
