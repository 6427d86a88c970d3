package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// peers are the programs and libraries that others move such files with, at
// their defaults.
func peers() []mover {
	return []mover{
		{name: "aws s3 cp", can: onlyWhole, process: awscli},
		{name: "s5cmd", can: onlyWhole, process: s5cmd},
		{name: "rclone", can: rcloneCan, ready: rcloneReady, process: rclone},
		library("gocloud", "go"),
		library("transfermanager", "go"),
		{name: "restic", can: resticCan, ready: resticReady, process: restic},
		library("boto3", "python"),
		tlsOnly(library("crt", "python")),
		library("s3torchconnector", "python"),
	}
}

// program finds what the script setup has installed. A peer that is not there
// is an error that says how to get it.
func (b *bench) program(name, onPath string) (string, error) {
	out, err := exec.Command(filepath.Join(b.root, "test", "bench", "setup"), "--find", name).Output()
	if err == nil {
		return strings.TrimSpace(string(out)), nil
	}
	if onPath != "" {
		if path, err := exec.LookPath(onPath); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("not installed: test/bench/setup %s", name)
}

// peer is a process of a peer's program.
func (b *bench) peer(t *trip, name, onPath string, args ...string) (process, error) {
	path, err := b.program(name, onPath)
	if err != nil {
		return process{}, err
	}
	return process{args: append([]string{path}, args...), env: b.env(t.st), dir: b.dir}, nil
}

// remote is where a peer puts the files, or finds them: "bucket/folder".
func (t *trip) remote() string {
	if t.way == down {
		return t.folder
	}
	return bucketName + "/peers/" + t.name
}

// source is the directory that is sent.
func (t *trip) source() string {
	if t.w.again {
		return filepath.Join(t.w.root, secondStep)
	}
	return t.w.step()
}

func awscli(b *bench, t *trip) (process, error) {
	from, to := t.source(), "s3://"+t.remote()+"/"
	if t.way == down {
		from, to = to, t.target
	}
	return b.peer(t, "awscli", "aws", "s3", "cp", from, to, "--recursive", "--only-show-errors")
}

func s5cmd(b *bench, t *trip) (process, error) {
	from, to := t.source()+"/", "s3://"+t.remote()+"/"
	if t.way == down {
		from, to = to+"*", t.target+"/"
	}
	return b.peer(t, "s5cmd", "s5cmd", "--log", "error", "--endpoint-url", t.st.endpoint, "cp", from, to)
}

func rcloneCan(st *store, w *workload, _ string) string {
	return unless(!w.again || st.keeps, "it compares MD5 sums, which the sink does not have")
}

// rcloneReady sends the first step, where the second is what is measured.
func rcloneReady(ctx context.Context, b *bench, t *trip) error {
	if !t.w.again {
		return nil
	}
	p, err := rcloneCopy(b, t, t.w.step(), ":s3:"+t.remote())
	if err != nil {
		return err
	}
	if _, _, err := p.run(ctx); err != nil {
		return err
	}
	return os.Rename(t.w.hidden(), filepath.Join(t.w.root, secondStep))
}

func rclone(b *bench, t *trip) (process, error) {
	from, to := t.source(), ":s3:"+t.remote()
	if t.way == down {
		from, to = to, t.target
	}
	return rcloneCopy(b, t, from, to)
}

func rcloneCopy(b *bench, t *trip, from, to string) (process, error) {
	args := []string{"copy", from, to, "--log-level", "ERROR"}
	if t.w.again {
		args = append(args, "--checksum")
	}
	p, err := b.peer(t, "rclone", "", args...)
	p.env = append(p.env, "RCLONE_CONFIG=", "RCLONE_S3_PROVIDER=Other", "RCLONE_S3_ENV_AUTH=true", "RCLONE_S3_ENDPOINT="+t.st.endpoint,
		"RCLONE_S3_REGION=us-east-1", "RCLONE_S3_FORCE_PATH_STYLE=true", "RCLONE_S3_NO_CHECK_BUCKET=true")
	if t.st.scheme == "https" {
		p.env = append(p.env, "RCLONE_CA_CERT="+b.ca.cert)
	}
	return p, err
}

func resticCan(st *store, _ *workload, way string) string {
	return unless(way == up || st.keeps, "it packs and encrypts, which the sink cannot make up")
}

// resticReady makes a repository, and backs the first step up in it where
// something is to be there.
func resticReady(ctx context.Context, b *bench, t *trip) error {
	commands := [][]string{{"init"}}
	if t.w.again || t.way == down {
		commands = append(commands, []string{"backup", "--quiet", t.w.step()})
	}
	for _, c := range commands {
		p, err := resticRun(b, t, c...)
		if err != nil {
			return err
		}
		if _, _, err := p.run(ctx); err != nil {
			return err
		}
	}
	if t.w.again {
		return os.Rename(t.w.hidden(), filepath.Join(t.w.root, secondStep))
	}
	return nil
}

func restic(b *bench, t *trip) (process, error) {
	if t.way == up {
		return resticRun(b, t, "backup", "--quiet", t.source())
	}
	return resticRun(b, t, "restore", "latest", "--quiet", "--target", t.target)
}

func resticRun(b *bench, t *trip, args ...string) (process, error) {
	all := append([]string{"-r", "s3:" + t.st.endpoint + "/" + bucketName + "/restic-" + t.name, "-o", "s3.bucket-lookup=path"}, args...)
	if t.st.scheme == "https" {
		all = append(all, "--cacert", b.ca.cert)
	}
	return b.peer(t, "restic", "restic", all...)
}

// library is a peer that is a library, in a program of the folder peers.
func library(name, language string) mover {
	return mover{name: name, can: onlyWhole, process: func(b *bench, t *trip) (process, error) {
		dir, script := t.source(), []string{}
		if t.way == down {
			dir = t.target
		}
		if language == "python" {
			script = []string{filepath.Join(b.root, "test", "bench", "peers", "peers.py")}
		}
		bucket, prefix, _ := strings.Cut(t.remote(), "/")
		return b.peer(t, language, "", append(script, name, t.way, dir, bucket, prefix)...)
	}}
}

// tlsOnly is for a client that takes every endpoint for https.
func tlsOnly(m mover) mover {
	can := m.can
	m.can = func(st *store, w *workload, way string) string {
		if st.scheme == "http" {
			return "it speaks TLS to every endpoint"
		}
		return can(st, w, way)
	}
	return m
}
