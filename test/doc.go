// Package test proves ckptsync from the outside: the rule of imports here, and
// below it real object stores, real trainers and crash tests. It may import
// anything; nothing imports it.
package test
