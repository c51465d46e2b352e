BEGIN TRANSACTION;
CREATE TABLE hpctl_agents (
	node VARCHAR(255) NOT NULL, 
	instance VARCHAR(64) NOT NULL, 
	boot VARCHAR(64) NOT NULL, 
	last_heard DOUBLE NOT NULL, 
	findings TEXT NOT NULL, 
	PRIMARY KEY (node)
);
INSERT INTO "hpctl_agents" VALUES('ip-10-1-0-1','i-00000000000000001','boot-1-a',1795262488.0,'[]');
INSERT INTO "hpctl_agents" VALUES('ip-10-1-0-3','i-00000000000000003','boot-3-a',1795262488.0,'[]');
INSERT INTO "hpctl_agents" VALUES('ip-10-1-0-6','i-00000000000000006','boot-6-a',1795262488.0,'[]');
INSERT INTO "hpctl_agents" VALUES('ip-10-1-0-7','i-00000000000000007','boot-7-a',1795262488.0,'[]');
INSERT INTO "hpctl_agents" VALUES('ip-10-1-0-2','i-0fresh00000000002','boot-2-b',1795262489.0,'[]');
INSERT INTO "hpctl_agents" VALUES('ip-10-1-0-4','i-00000000000000004','boot-4-a',1795262461.0,'[{"check":"kernel.xid","verdict":"fail","first":"2026-11-21T12:00:00Z","last":"2026-11-21T12:00:00.100000Z","device":"0000:18:00","code":"79","detail":"GPU has fallen off the bus","evidence":"NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.","count":2,"clears":"boot","job":""}]');
INSERT INTO "hpctl_agents" VALUES('ip-10-1-0-5','i-00000000000000005','boot-5-a',1795262488.5,'[{"check":"kernel.xid","verdict":"fail","first":"2026-11-21T12:00:00Z","last":"2026-11-21T12:00:00.100000Z","device":"0000:18:00","code":"79","detail":"GPU has fallen off the bus","evidence":"NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.","count":2,"clears":"boot","job":""}]');
CREATE TABLE hpctl_audit (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	kind VARCHAR(32) NOT NULL, 
	payload TEXT NOT NULL, 
	digest VARCHAR(64) NOT NULL
);
INSERT INTO "hpctl_audit" VALUES(1,'RequestTaken','{"at":"2026-11-21T12:01:15Z","request":0,"verb":"approve","target":"ip-10-1-0-9","by":"carol","answer":"nothing is held for it","ok":false,"proof":""}','97fd1dd0c0ddb0aa2a4f298bc4e3e1930441b7c9d1e3a053e43e0a601f9d829e');
CREATE TABLE hpctl_events (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	kind VARCHAR(32) NOT NULL, 
	payload TEXT NOT NULL
);
INSERT INTO "hpctl_events" VALUES(1,'ChangeOpened','{"at":"2026-11-21T11:00:00Z","recovery":"s-11111111","kind":"add","group":"worker-group-1","why":"job 4600 waits for 4 node(s), 2 too few","count":2,"size":8,"node":null,"instance":null,"nodes":[],"released":[],"cause":null}');
INSERT INTO "hpctl_events" VALUES(2,'StepStarted','{"at":"2026-11-21T11:00:00Z","recovery":"s-11111111","step":"add","attempt":1,"target":"worker-group-1","detail":""}');
INSERT INTO "hpctl_events" VALUES(3,'StepResolved','{"at":"2026-11-21T11:00:01Z","recovery":"s-11111111","step":"add","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"2 of 2: a,b","transient":false}}');
INSERT INTO "hpctl_events" VALUES(4,'SignalSeen','{"at":"2026-11-21T11:00:01Z","recovery":"s-11111111","signal":"order_taken","why":"the service took the order for 2 more","generation":null}');
INSERT INTO "hpctl_events" VALUES(5,'SignalSeen','{"at":"2026-11-21T11:10:00Z","recovery":"s-11111111","signal":"arrived","why":"8 instances of worker-group-1 run","generation":null}');
INSERT INTO "hpctl_events" VALUES(6,'ChangeOpened','{"at":"2026-11-21T12:00:10Z","recovery":"s-22222222","kind":"remove","group":"worker-group-1","why":"idle","count":0,"size":0,"node":"ip-10-1-0-12","instance":"i-00000000000000012","nodes":[],"released":[],"cause":null}');
INSERT INTO "hpctl_events" VALUES(7,'SignalSeen','{"at":"2026-11-21T12:00:11Z","recovery":"s-22222222","signal":"closed_seen","why":"slurmctld shows DRAIN with our Reason","generation":null}');
INSERT INTO "hpctl_events" VALUES(8,'StepStarted','{"at":"2026-11-21T12:00:11Z","recovery":"s-22222222","step":"remove","attempt":1,"target":"i-00000000000000012","detail":""}');
INSERT INTO "hpctl_events" VALUES(9,'StepResolved','{"at":"2026-11-21T12:00:12Z","recovery":"s-22222222","step":"remove","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(10,'SignalSeen','{"at":"2026-11-21T12:00:12Z","recovery":"s-22222222","signal":"order_taken","why":"the service accepted to delete i-00000000000000012","generation":null}');
INSERT INTO "hpctl_events" VALUES(11,'SignalSeen','{"at":"2026-11-21T12:00:14Z","recovery":"s-22222222","signal":"gone","why":"i-00000000000000012 is not listed any more","generation":null}');
INSERT INTO "hpctl_events" VALUES(12,'DaemonStarted','{"at":"2026-11-21T11:50:00Z","version":"0.1.0","mode":"own","host":"head-1","pid":4711}');
INSERT INTO "hpctl_events" VALUES(13,'NodeRecoveryOpened','{"at":"2026-11-21T12:00:00.150000Z","recovery":"n-11111111","generation":{"node":"ip-10-1-0-2","instance":"i-00000000000000002","boot":"boot-2-a"},"rule":"xid-79","meaning":"GPU has fallen off the bus","urgency":"now","ladder":["replace"],"why":"xid-79 on 0000:18:00","mode":"own","rung":0,"logical_id":"worker-group-1-2","by":"","findings":[{"check":"kernel.xid","verdict":"fail","first":"2026-11-21T12:00:00Z","last":"2026-11-21T12:00:00.100000Z","device":"0000:18:00","code":"79","detail":"GPU has fallen off the bus","evidence":"NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.","count":2,"clears":"boot","job":""}],"passed":["kill_switch","paused","stale_facts","wrong_instance","provider_acts","provider_auto_recovery","foreign_drain","protected","not_allowed","correlated","budget","offender","launch_breaker","observing"]}');
INSERT INTO "hpctl_events" VALUES(14,'StepStarted','{"at":"2026-11-21T12:00:00.160000Z","recovery":"n-11111111","step":"drain","attempt":1,"target":"ip-10-1-0-2","detail":""}');
INSERT INTO "hpctl_events" VALUES(15,'StepResolved','{"at":"2026-11-21T12:00:00.190000Z","recovery":"n-11111111","step":"drain","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(16,'SignalSeen','{"at":"2026-11-21T12:00:00.210000Z","recovery":"n-11111111","signal":"cordon_seen","why":"slurmctld shows DRAIN with our Reason","generation":null}');
INSERT INTO "hpctl_events" VALUES(17,'JobRecoveryOpened','{"at":"2026-11-21T12:00:00.220000Z","recovery":"j-22222222","attempt":{"job":4242,"submit":"2026-11-21T11:00:00Z","restarts":0},"cause":"n-11111111","bad_nodes":["ip-10-1-0-2"],"why":"its node ip-10-1-0-2: GPU has fallen off the bus","name":"train","user":"alice","partition":"gpu","save_signal":"","over_budget":"","trouble":null,"action":"none","exclude":[],"start_at":null,"supervised":false,"ran_on":[]}');
INSERT INTO "hpctl_events" VALUES(18,'SignalSeen','{"at":"2026-11-21T12:00:00.230000Z","recovery":"j-22222222","signal":"stop_wanted","why":"it cannot go on where it is","generation":null}');
INSERT INTO "hpctl_events" VALUES(19,'StepStarted','{"at":"2026-11-21T12:00:00.240000Z","recovery":"n-11111111","step":"down","attempt":1,"target":"ip-10-1-0-2","detail":""}');
INSERT INTO "hpctl_events" VALUES(20,'StepResolved','{"at":"2026-11-21T12:00:00.270000Z","recovery":"n-11111111","step":"down","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(21,'SignalSeen','{"at":"2026-11-21T12:00:00.400000Z","recovery":"j-22222222","signal":"queued","why":"the job is back in the queue","generation":null}');
INSERT INTO "hpctl_events" VALUES(22,'StepStarted','{"at":"2026-11-21T12:00:00.410000Z","recovery":"j-22222222","step":"start_now","attempt":1,"target":"4242","detail":""}');
INSERT INTO "hpctl_events" VALUES(23,'StepResolved','{"at":"2026-11-21T12:00:00.440000Z","recovery":"j-22222222","step":"start_now","attempt":1,"outcome":{"kind":"rejected","code":"completing","detail":"","transient":true}}');
INSERT INTO "hpctl_events" VALUES(24,'StepStarted','{"at":"2026-11-21T12:00:00.900000Z","recovery":"j-22222222","step":"start_now","attempt":2,"target":"4242","detail":""}');
INSERT INTO "hpctl_events" VALUES(25,'StepResolved','{"at":"2026-11-21T12:00:00.930000Z","recovery":"j-22222222","step":"start_now","attempt":2,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(26,'SignalSeen','{"at":"2026-11-21T12:00:00.950000Z","recovery":"n-11111111","signal":"jobs_gone","why":"no job holds the node","generation":null}');
INSERT INTO "hpctl_events" VALUES(27,'SignalSeen','{"at":"2026-11-21T12:00:00.950000Z","recovery":"j-22222222","signal":"started","why":"its begin delay is gone, the bad nodes are excluded","generation":null}');
INSERT INTO "hpctl_events" VALUES(28,'SignalSeen','{"at":"2026-11-21T12:00:01.600000Z","recovery":"j-22222222","signal":"running_seen","why":"running on ip-10-1-0-1,ip-10-1-0-3","generation":null}');
INSERT INTO "hpctl_events" VALUES(29,'StepStarted','{"at":"2026-11-21T12:00:01Z","recovery":"n-11111111","step":"replace","attempt":1,"target":"i-00000000000000002","detail":""}');
INSERT INTO "hpctl_events" VALUES(30,'StepResolved','{"at":"2026-11-21T12:00:01.030000Z","recovery":"n-11111111","step":"replace","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(31,'SignalSeen','{"at":"2026-11-21T12:00:01.400000Z","recovery":"n-11111111","signal":"remedy_accepted","why":"instance i-00000000000000002 is ShuttingDown","generation":null}');
INSERT INTO "hpctl_events" VALUES(32,'SignalSeen','{"at":"2026-11-21T12:00:21Z","recovery":"n-11111111","signal":"new_generation_seen","why":"instance i-0fresh00000000002, boot boot-2-b","generation":{"node":"ip-10-1-0-2","instance":"i-0fresh00000000002","boot":"boot-2-b"}}');
INSERT INTO "hpctl_events" VALUES(33,'SignalSeen','{"at":"2026-11-21T12:00:23.500000Z","recovery":"n-11111111","signal":"rejoined","why":"the cloud says Running, the agent reports, slurmd registered","generation":null}');
INSERT INTO "hpctl_events" VALUES(34,'SignalSeen','{"at":"2026-11-21T12:00:31.600000Z","recovery":"j-22222222","signal":"proved","why":"ran 30 s on ip-10-1-0-1,ip-10-1-0-3","generation":null}');
INSERT INTO "hpctl_events" VALUES(35,'StepStarted','{"at":"2026-11-21T12:00:53.500000Z","recovery":"n-11111111","step":"return","attempt":1,"target":"ip-10-1-0-2","detail":""}');
INSERT INTO "hpctl_events" VALUES(36,'StepResolved','{"at":"2026-11-21T12:00:53.530000Z","recovery":"n-11111111","step":"return","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(37,'SignalSeen','{"at":"2026-11-21T12:00:53.700000Z","recovery":"n-11111111","signal":"return_seen","why":"slurmctld shows the node in service","generation":null}');
INSERT INTO "hpctl_events" VALUES(38,'NodeRecoveryOpened','{"at":"2026-11-21T12:00:40Z","recovery":"n-66666666","generation":{"node":"ip-10-1-0-6","instance":"i-00000000000000006","boot":"boot-6-a"},"rule":"xid-119","meaning":"GSP RPC timeout","urgency":"now","ladder":["reboot","replace"],"why":"xid-79 on 0000:18:00","mode":"own","rung":0,"logical_id":"worker-group-1-2","by":"","findings":[],"passed":["kill_switch","paused","stale_facts","wrong_instance","provider_acts","provider_auto_recovery","foreign_drain","protected","not_allowed","correlated","budget","offender","launch_breaker","observing"]}');
INSERT INTO "hpctl_events" VALUES(39,'StepStarted','{"at":"2026-11-21T12:00:40.100000Z","recovery":"n-66666666","step":"drain","attempt":1,"target":"ip-10-1-0-6","detail":""}');
INSERT INTO "hpctl_events" VALUES(40,'StepResolved','{"at":"2026-11-21T12:00:40.130000Z","recovery":"n-66666666","step":"drain","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(41,'SignalSeen','{"at":"2026-11-21T12:00:40.200000Z","recovery":"n-66666666","signal":"cordon_seen","why":"slurmctld shows DRAIN with our Reason","generation":null}');
INSERT INTO "hpctl_events" VALUES(42,'SignalSeen','{"at":"2026-11-21T12:00:44Z","recovery":"n-66666666","signal":"needs_human","why":"no provider: reboot or replace the node, then return it","generation":null}');
INSERT INTO "hpctl_events" VALUES(43,'NodeRecoveryOpened','{"at":"2026-11-21T12:01:00Z","recovery":"n-44444444","generation":{"node":"ip-10-1-0-4","instance":"i-00000000000000004","boot":"boot-4-a"},"rule":"xid-79","meaning":"GPU has fallen off the bus","urgency":"now","ladder":["reboot","replace"],"why":"xid-79 on 0000:18:00","mode":"own","rung":0,"logical_id":"worker-group-1-2","by":"","findings":[{"check":"kernel.xid","verdict":"fail","first":"2026-11-21T12:00:00Z","last":"2026-11-21T12:00:00.100000Z","device":"0000:18:00","code":"79","detail":"GPU has fallen off the bus","evidence":"NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.","count":2,"clears":"boot","job":""}],"passed":["kill_switch","paused","stale_facts","wrong_instance","provider_acts","provider_auto_recovery","foreign_drain","protected","not_allowed","correlated","budget","offender","launch_breaker","observing"]}');
INSERT INTO "hpctl_events" VALUES(44,'StepStarted','{"at":"2026-11-21T12:01:00.100000Z","recovery":"n-44444444","step":"drain","attempt":1,"target":"ip-10-1-0-4","detail":""}');
INSERT INTO "hpctl_events" VALUES(45,'StepResolved','{"at":"2026-11-21T12:01:00.130000Z","recovery":"n-44444444","step":"drain","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(46,'SignalSeen','{"at":"2026-11-21T12:01:00.200000Z","recovery":"n-44444444","signal":"cordon_seen","why":"slurmctld shows DRAIN with our Reason","generation":null}');
INSERT INTO "hpctl_events" VALUES(47,'JobRecoveryOpened','{"at":"2026-11-21T12:01:00.300000Z","recovery":"j-55555555","attempt":{"job":4343,"submit":"2026-11-21T11:00:00Z","restarts":1},"cause":"n-44444444","bad_nodes":["ip-10-1-0-4"],"why":"its node ip-10-1-0-4: GPU has fallen off the bus","name":"sweep [7B]","user":"bob","partition":"gpu","save_signal":"","over_budget":"","trouble":null,"action":"none","exclude":[],"start_at":null,"supervised":false,"ran_on":[]}');
INSERT INTO "hpctl_events" VALUES(48,'SignalSeen','{"at":"2026-11-21T12:01:00.400000Z","recovery":"j-55555555","signal":"stop_wanted","why":"it cannot go on where it is","generation":null}');
INSERT INTO "hpctl_events" VALUES(49,'SignalSeen','{"at":"2026-11-21T12:01:01Z","recovery":"j-55555555","signal":"queued","why":"the job is back in the queue","generation":null}');
INSERT INTO "hpctl_events" VALUES(50,'StepStarted','{"at":"2026-11-21T12:01:01.100000Z","recovery":"j-55555555","step":"start_now","attempt":1,"target":"4343","detail":""}');
INSERT INTO "hpctl_events" VALUES(51,'StepResolved','{"at":"2026-11-21T12:01:01.130000Z","recovery":"j-55555555","step":"start_now","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(52,'SignalSeen','{"at":"2026-11-21T12:01:01.200000Z","recovery":"j-55555555","signal":"started","why":"its begin delay is gone, the bad nodes are excluded","generation":null}');
INSERT INTO "hpctl_events" VALUES(53,'SignalSeen','{"at":"2026-11-21T12:01:01.300000Z","recovery":"n-44444444","signal":"jobs_gone","why":"no job holds the node","generation":null}');
INSERT INTO "hpctl_events" VALUES(54,'StepStarted','{"at":"2026-11-21T12:01:01.400000Z","recovery":"n-44444444","step":"reboot","attempt":1,"target":"i-00000000000000004","detail":""}');
INSERT INTO "hpctl_events" VALUES(55,'HoldNoted','{"at":"2026-11-21T12:01:10Z","target":"ip-10-1-0-5","gate":"budget","why":"2 recoveries are open in the cluster; the budget is 2","rule":"xid-79","approvable":true}');
INSERT INTO "hpctl_events" VALUES(56,'HoldNoted','{"at":"2026-11-21T12:01:11Z","target":"4444","gate":"not_recoverable","why":"job 4444 cannot be started again by Slurm (Requeue=0); submit with --requeue","rule":"xid-79","approvable":false}');
INSERT INTO "hpctl_events" VALUES(57,'JobReported','{"at":"2026-11-21T12:01:12Z","report":{"job":4545,"restarts":2,"trouble":{"kind":"hang","at":"2026-11-21T12:01:11.500000Z","why":"rank 3 stands still in step 1200","signature":"hang all_reduce","node":"ip-10-1-0-2","rank":3,"device":"0000:53:00.0","exit_code":null,"evidence":"step 1200 loss 2.31","step":1200,"progress":1000},"action":"requeue","why":"no spare is left","wish":"requeue","exclude":["ip-10-1-0-2"],"after_s":60.0,"progress":1000},"uid":1001}');
INSERT INTO "hpctl_events" VALUES(58,'JobRecoveryOpened','{"at":"2026-11-21T12:01:12.100000Z","recovery":"j-77777777","attempt":{"job":4545,"submit":"2026-11-21T11:00:00Z","restarts":2},"cause":"","bad_nodes":[],"why":"rank 3 stands still in step 1200; no spare is left","name":"pretrain","user":"erin","partition":"gpu","save_signal":"","over_budget":"","trouble":{"kind":"hang","at":"2026-11-21T12:01:11.500000Z","why":"rank 3 stands still in step 1200","signature":"hang all_reduce","node":"ip-10-1-0-2","rank":3,"device":"0000:53:00.0","exit_code":null,"evidence":"step 1200 loss 2.31","step":1200,"progress":1000},"action":"requeue","exclude":["ip-10-1-0-2"],"start_at":"2026-11-21T12:02:12Z","supervised":false,"ran_on":["ip-10-1-0-2","ip-10-1-0-3"]}');
INSERT INTO "hpctl_events" VALUES(59,'SignalSeen','{"at":"2026-11-21T12:01:12.100000Z","recovery":"j-77777777","signal":"stop_wanted","why":"it cannot go on where it is","generation":null}');
INSERT INTO "hpctl_events" VALUES(60,'StepStarted','{"at":"2026-11-21T12:01:12.200000Z","recovery":"j-77777777","step":"requeue","attempt":1,"target":"4545","detail":""}');
INSERT INTO "hpctl_events" VALUES(61,'StepResolved','{"at":"2026-11-21T12:01:12.230000Z","recovery":"j-77777777","step":"requeue","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(62,'SignalSeen','{"at":"2026-11-21T12:01:12.900000Z","recovery":"j-77777777","signal":"queued","why":"the job is back in the queue","generation":null}');
INSERT INTO "hpctl_events" VALUES(63,'StepStarted','{"at":"2026-11-21T12:01:13.100000Z","recovery":"j-77777777","step":"start_now","attempt":1,"target":"4545","detail":""}');
INSERT INTO "hpctl_events" VALUES(64,'StepResolved','{"at":"2026-11-21T12:01:13.130000Z","recovery":"j-77777777","step":"start_now","attempt":1,"outcome":{"kind":"accepted","code":"","detail":"","transient":false}}');
INSERT INTO "hpctl_events" VALUES(65,'SignalSeen','{"at":"2026-11-21T12:01:13.200000Z","recovery":"j-77777777","signal":"started","why":"it backs off until 12:02:12 UTC","generation":null}');
INSERT INTO "hpctl_events" VALUES(66,'RequestTaken','{"at":"2026-11-21T12:01:15Z","request":0,"verb":"approve","target":"ip-10-1-0-9","by":"carol","answer":"nothing is held for it","ok":false,"proof":""}');
CREATE TABLE hpctl_heard (
	id INTEGER NOT NULL, 
	times TEXT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE hpctl_lease (
	id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	until DOUBLE NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	pid INTEGER NOT NULL, 
	version VARCHAR(32) NOT NULL, 
	mode VARCHAR(16) NOT NULL, 
	started DOUBLE NOT NULL, 
	heartbeat DOUBLE NOT NULL, 
	last_cycle_s DOUBLE NOT NULL, 
	trouble TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "hpctl_lease" VALUES(1,1,1795261830.0,'head-1',4711,'0.1.0','own',1795261800.0,1795261800.0,0.0,'');
CREATE TABLE hpctl_meta (
	name VARCHAR(32) NOT NULL, 
	value VARCHAR(64) NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "hpctl_meta" VALUES('schema','1');
CREATE TABLE hpctl_past (
	seq INTEGER NOT NULL, 
	day INTEGER NOT NULL, 
	recovery VARCHAR(32) NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	payload TEXT NOT NULL, 
	PRIMARY KEY (seq)
);
CREATE TABLE hpctl_requests (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at DOUBLE NOT NULL, 
	verb VARCHAR(32) NOT NULL, 
	target VARCHAR(255) NOT NULL, 
	asked_by VARCHAR(255) NOT NULL, 
	taken BOOLEAN NOT NULL
);
INSERT INTO "hpctl_requests" VALUES(1,1795262489.0,'pause','','dora',0);
CREATE INDEX hpctl_events_kind ON hpctl_events (kind);
CREATE INDEX hpctl_past_recovery ON hpctl_past (recovery);
CREATE INDEX hpctl_past_day ON hpctl_past (day);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('hpctl_events',66);
INSERT INTO "sqlite_sequence" VALUES('hpctl_audit',1);
INSERT INTO "sqlite_sequence" VALUES('hpctl_requests',1);
COMMIT;
