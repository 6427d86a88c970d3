package fileblob

// ClassOf is for tests of the classes of errors that are hard to make.
var ClassOf = classOf

// DecodeRecord is for the fuzz test.
var DecodeRecord = decodeRecord
