return recordReply(openRecord())
